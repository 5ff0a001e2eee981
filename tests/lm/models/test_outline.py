"""Networks of shapes are the networks that are loaded, but for their values."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Float32

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.outline import Outline
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.load import load_network, outline_network
from deployments.lm.program_text import program_fingerprint
from deployments.lm.quant.linear import Precision
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for
from tests.lm.models.test_golden import TABLE, Golden

CASES = [
    pytest.param(golden, precision, file, id=f"{golden.folder}-{precision}-{file or 'folder'}")
    for golden in TABLE
    if not golden.takes_long
    for precision, file in (*((precision, "") for precision in Precision), (Precision.INT8, golden.gguf))
]


class Unread(Outline):
    """A checkpoint whose weights must not be read."""

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        # Which is numbers, kept as a tensor.
        if name != "rope_freqs.weight":
            raise AssertionError(f"{name} was read")
        return super().tensor(name, part=part)


def assert_outlines(path: Path, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> None:
    outlined = outline_network(Unread(open_checkpoint(path)), precision=precision, kernels=kernels)
    loaded = load_network(open_checkpoint(path), precision=precision, kernels=kernels)
    (drawn, shapes), (built, values) = nnx.split(outlined), nnx.split(loaded)

    assert drawn == built
    pairs = list(zip(jax.tree.leaves(shapes), jax.tree.leaves(values), strict=True))
    assert pairs
    for shape, value in pairs:
        assert isinstance(shape, jax.ShapeDtypeStruct)
        assert (shape.shape, shape.dtype) == (value.shape, value.dtype)
    assert is_shared(outlined) == is_shared(loaded)


def is_shared(network: Decoder) -> bool:
    table = network.embedding.table.get_raw_value()
    return any(leaf is table for leaf in jax.tree.leaves(nnx.state(network.head)))


@pytest.mark.parametrize(("golden", "precision", "file"), CASES)
def test_every_family_has_the_parts_that_are_loaded(
    goldens: Path, golden: Golden, precision: Precision, file: str
) -> None:
    assert_outlines(goldens / golden.folder / file, precision=precision)


@pytest.mark.slow
def test_the_deepest_too(goldens: Path) -> None:
    assert_outlines(goldens / "exaone4_hybrid", precision=Precision.INT8)


@pytest.mark.parametrize("folder", ["llama", "qwen3_moe"])
def test_native_kernels_take_their_own_shapes(goldens: Path, folder: str) -> None:
    assert_outlines(goldens / folder, precision=Precision.INT8, kernels=Kernels.NATIVE)


@pytest.mark.parametrize("folder", ["llama", "qwen3_5"])
def test_programs_of_shapes_are_those_of_values(goldens: Path, folder: str) -> None:
    """Exactly the text that is compiled, so that what is said of one is true of the other."""
    path = goldens / folder
    texts = []
    for build in (outline_network, load_network):
        network = build(open_checkpoint(path), precision=Precision.INT8)
        settings = ModelSettings(model_path=str(path), slots=2, context=64, page_size=16, ladder=(8,))
        sizes = sizes_for(fitted(settings, config=network.config), config=network.config)
        lowered = Blueprint(network, sizes=sizes).all_lowered()
        texts.append(program_fingerprint(program.as_text() for program in lowered.values()))

    assert texts[0] == texts[1]


def test_a_table_of_both_ends_is_one_leaf(goldens: Path) -> None:
    outlined = outline_network(open_checkpoint(goldens / "llama_rope3"), precision=Precision.BF16)

    assert is_shared(outlined)
    assert outlined.embedding.table.get_raw_value().dtype == jnp.bfloat16
