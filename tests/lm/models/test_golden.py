"""Every family against two peers' figures (`tests/data/golden`): logits, hidden states, greedy texts, both formats.

Every token goes through the programs that serve, in windows of 64 rows and pages of 32, so that prompts and texts
cross both. A text is greedy when each of its tokens has the largest logit after the ones before it. Each checkpoint
is compiled once, from its GGUF file; its safetensors must then be the same network, bit by bit.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from deployments.lm.attention import TILE_ROWS, Tiles
from deployments.lm.cache.layout import CacheShape
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder, Window, WindowRows
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.lm.recurrence import Recurrence
from deployments.verifier.programs import Programs
from tests.verifier.forcing import forced_logits, programs_for

PAGE_SIZE = 32

type Reference = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A checkpoint, and how close to its peers it must come.

    Attributes:
        folder: with `config.json` and `model.safetensors`,
        gguf: and the same network as a GGUF file.
        tolerance: the most a logit may differ in f32.
        has_hidden: its reference holds the residual stream before each layer.
        takes_long: to compile, and so is left to the slow tests.
    """

    folder: str
    gguf: str
    tolerance: float = 2e-3
    has_hidden: bool = False
    takes_long: bool = False


TABLE = (
    Golden(folder="llama", gguf="llama.f16.gguf", has_hidden=True),
    Golden(folder="llama_rope3", gguf="llama_rope3.f32.gguf"),
    Golden(folder="qwen2", gguf="qwen2.bf16.gguf"),
    Golden(folder="qwen3", gguf="qwen3.f16.gguf", has_hidden=True),
    Golden(folder="qwen2_moe", gguf="qwen2_moe.f16.gguf"),
    Golden(folder="qwen3_moe", gguf="qwen3_moe.f16.gguf"),
    Golden(folder="qwen3_5", gguf="qwen3_5.f16.gguf", tolerance=1e-2, has_hidden=True),
    Golden(folder="qwen3_5_moe", gguf="qwen3_5_moe.f16.gguf", tolerance=1e-2),
    Golden(folder="granite", gguf="granite.f16.gguf"),
    Golden(folder="exaone", gguf="exaone.f16.gguf"),
    Golden(folder="exaone4", gguf="exaone4.f16.gguf"),
    Golden(folder="exaone4_hybrid", gguf="exaone4_hybrid.f16.gguf", tolerance=1e-2, takes_long=True),
    Golden(folder="gemma3", gguf="gemma3.f16.gguf"),
    Golden(folder="gemma4_e", gguf="gemma4_e.f16.gguf"),
    Golden(folder="gemma4_dense", gguf="gemma4_dense.f16.gguf"),
    Golden(folder="gemma4_moe", gguf="gemma4_moe.f16.gguf"),
)


def cases(*, with_hidden: bool = False) -> list[object]:
    return [
        pytest.param(golden, id=golden.folder, marks=[pytest.mark.slow] if golden.takes_long else [])
        for golden in TABLE
        if golden.has_hidden or not with_hidden
    ]


@cache
def network(path: Path, /) -> Decoder:
    return load_network(open_checkpoint(path), precision=Precision.F32)


@cache
def programs(path: Path, /) -> Programs:
    return programs_for(network(path), precision=Precision.F32, rows=64, context=192, page_size=PAGE_SIZE)


def reference(path: Path) -> Reference:
    with np.load(path) as stored:
        return dict(stored)


@pytest.mark.parametrize("golden", cases())
def test_logits_and_texts_are_the_peers(goldens: Path, golden: Golden) -> None:
    wanted = reference(goldens / golden.folder / "ref.npz")
    found = programs(goldens / golden.folder / golden.gguf)
    compared = 0
    for number in range(3):
        prompt, greedy = wanted[f"prompt_{number}"], wanted[f"greedy_{number}"]
        logits = forced_logits(found, [*prompt.tolist(), *greedy.tolist()])
        rows = wanted[f"logits_{number}"]
        assert np.abs(logits[: len(prompt)] - rows).max() < golden.tolerance
        np.testing.assert_array_equal(logits[len(prompt) - 1 : -1].argmax(axis=-1), greedy)
        compared += len(rows) + len(greedy)

    assert compared == 309


@pytest.mark.parametrize("golden", cases())
def test_both_formats_are_one_network(goldens: Path, golden: Golden) -> None:
    """The same parts made of the same bits, and so the same logits in either."""
    folder = goldens / golden.folder
    (left, kept), (right, read) = (nnx.split(network(path)) for path in (folder / golden.gguf, folder))

    assert network(folder).config == network(folder / golden.gguf).config
    assert left == right
    kept_leaves, read_leaves = jax.tree.leaves(kept), jax.tree.leaves(read)
    assert len(kept_leaves) == len(read_leaves) > 0
    for one, other in zip(kept_leaves, read_leaves, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def streams(model: Decoder, *, tokens: np.ndarray) -> list[np.ndarray]:
    """The residual stream before each layer, and after the final norm."""
    count = len(tokens)
    pages = -(-count // PAGE_SIZE)
    # One state beside the scratch state and the empty one, and no drafts.
    shape = CacheShape(layout=model.config.layout, pages=pages + 1, page_size=PAGE_SIZE, states=3, pending=1)
    cache = shape.zeros(jnp.dtype(jnp.float32))
    numbers = jnp.arange(count, dtype=jnp.int32)
    lanes = numbers.reshape(-1, TILE_ROWS)
    rows = WindowRows(
        tokens=jnp.asarray(tokens),
        positions=numbers,
        pages=1 + numbers // PAGE_SIZE,
        offsets=numbers % PAGE_SIZE,
        live=jnp.int32(count),
        recurrence=Recurrence(segments=jnp.asarray([[1, count, 2, 1]]), places=jnp.zeros_like(numbers)),
    )
    table = jnp.tile(1 + jnp.arange(pages, dtype=jnp.int32), (len(lanes), 1))
    tiles = Tiles(rows=lanes, positions=lanes, pages=table, lane_of_row=numbers)

    @nnx.jit
    def run(model: Decoder) -> list[jax.Array]:
        window = Window(rows=rows, tiles=tiles, angles=model.angles(numbers))
        found = [model.embedded(rows.tokens)]
        for block in model.blocks:
            found.append(block(found[-1], window=window, cache=cache[block.entry]).out)
        return [*found[:-1], model.norm(found[-1])]

    return [np.asarray(x) for x in run(model)]


@pytest.mark.parametrize("golden", cases(with_hidden=True))
def test_every_layer_hands_on_the_peers_hidden_states(goldens: Path, golden: Golden) -> None:
    """Features that trained drafters read; the last is after the final norm."""
    wanted = reference(goldens / golden.folder / "ref.npz")
    model = network(goldens / golden.folder / golden.gguf)
    found = streams(model, tokens=wanted["prompt_1"])

    assert len(found) == len(wanted["hidden_1"]) == model.config.layers + 1
    for layer, (left, right) in enumerate(zip(found, wanted["hidden_1"], strict=True)):
        assert np.abs(left - right).max() < golden.tolerance, f"before layer {layer}"
