"""Shapes of models without weights: published ones have their published sizes, and nothing hostile gets in."""

import math
from pathlib import Path

import jax
import pytest
from flax import nnx

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.shape_file import ShapeFile
from deployments.lm.models.load import load_network, outline_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from serve_app import compiling

SHAPES = Path(compiling.__file__).parent / "shapes"
# Of the safetensors files as published (model cards; `total_size` of their indices), tables that are both ends once.
# Qwen3.8 27B's is what the published numbers of its text model come to.
PARAMETERS = {
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3.8-27b": 26_895_998_464,
    "smollm2-135m": 134_515_008,
}

TINY = """
model_type: llama
vocab_size: 64
hidden_size: 32
intermediate_size: 64
num_hidden_layers: 2
num_attention_heads: 4
num_key_value_heads: 2
max_position_embeddings: 128
rms_norm_eps: 1.0e-5
tie_word_embeddings: false
"""


def written(folder: Path, text: str, *, name: str = "tiny.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_shipped_shape_has_as_many_parameters_as_published() -> None:
    counted = {}
    for path in SHAPES.glob("*.yaml"):
        network = outline_network(ShapeFile(path), precision=Precision.BF16)
        leaves = {id(leaf): math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))}
        counted[path.stem] = sum(leaves.values())

    assert counted == PARAMETERS


def test_json_says_the_same_as_yaml(tmp_path: Path, goldens: Path) -> None:
    config = (goldens / "qwen3_5_moe" / "config.json").read_text()
    # Which is YAML as well.
    shapes = [ShapeFile(written(tmp_path, config, name=name)) for name in ("shape.json", "shape.yaml")]
    left, right = (outline_network(shape, precision=Precision.INT8) for shape in shapes)

    assert left.config == right.config
    assert nnx.split(left)[0] == nnx.split(right)[0]


@pytest.mark.parametrize(
    "folder",
    [
        *("exaone", "exaone4", "gemma3", "gemma4_dense", "gemma4_e", "gemma4_moe", "granite", "llama", "llama_rope3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe"),
    ],
)
def test_a_configuration_alone_is_enough(goldens: Path, folder: str) -> None:
    """The same leaves as with the weights beside it."""
    alone = outline_network(ShapeFile(goldens / folder / "config.json"), precision=Precision.F32)
    loaded = load_network(open_checkpoint(goldens / folder), precision=Precision.F32)
    (drawn, shapes), (built, values) = nnx.split(alone), nnx.split(loaded)

    assert drawn == built
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [leaf.shape for leaf in jax.tree.leaves(values)]


def test_there_is_nothing_to_load(tmp_path: Path) -> None:
    shape = ShapeFile(written(tmp_path, TINY))

    assert (shape.name, shape.architecture, shape.files) == ("tiny", "llama", (tmp_path / "tiny.yaml",))
    with pytest.raises(CheckpointError, match="a shape without weights; give the model itself"):
        shape.tensor("model.norm.weight")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- llama\n", "list, expected keys and values"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "aliases"),
        ("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n", "nested too deep"),
        ("a: [" * 5000, "damaged"),
        ("a: \0", "damaged"),
        (TINY.replace("llama", "lama"), "this version runs"),
        (TINY.replace("num_hidden_layers: 2", "num_hidden_layers: 100000"), "not from 1 to 1024"),
        (TINY.replace("tie_word_embeddings: false", ""), "tie_word_embeddings"),
        (TINY.replace("hidden_size: 32", "hidden_size: many"), "hidden_size is str, expected int"),
        (TINY + "x: " + "y" * 300_000, "which no configuration has"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        outline_network(ShapeFile(written(tmp_path, text)), precision=Precision.INT8)
