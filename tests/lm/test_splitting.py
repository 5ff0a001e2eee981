"""A network taken apart: shapes of every share, the table that is embedding and head, and what is refused.

What the shares compute together is in `tests/verifier/test_tensor_parallel.py`, which needs several devices.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from deployments.lm.cache.layout import KeysAndValues, Recurrent
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import AXIS, along, spec_of
from deployments.lm.models.load import load_network, outline_network
from deployments.lm.quant.linear import FloatLinear, Int8Linear, Precision
from deployments.lm.self_attention import SelfAttention
from deployments.lm.splitting import split_network
from deployments.messages.errors import ConfigError


def _kept(leaf: Any, split: int | None) -> Any:
    return leaf


def _split(folder: Path, *, shards: int, precision: Precision = Precision.INT8) -> Decoder:
    whole = load_network(open_checkpoint(next(folder.glob("*.gguf"))), precision=precision)
    return split_network(whole, shards=shards, place=_kept)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_every_leaf_knows_how_it_lies_and_divides(family: str, goldens: Path) -> None:
    network = _split(goldens / family, shards=8)
    leaves = jax.tree.leaves(nnx.state(network), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    split = 0
    for leaf in leaves:
        spec = spec_of(leaf)
        if AXIS in spec:
            split += 1
            assert leaf.get_raw_value().shape[tuple(spec).index(AXIS)] % 8 == 0
    assert split > 4 * network.config.layers


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_shapes_alone_are_split_alike(family: str, goldens: Path) -> None:
    checkpoint = open_checkpoint(next((goldens / family).glob("*.gguf")))
    outline = split_network(outline_network(checkpoint, precision=Precision.INT8), shards=4, place=_kept)
    loaded = _split(goldens / family, shards=4)
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(nnx.state(loaded))]
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(nnx.state(outline))] == shapes
    assert outline.config == loaded.config


def test_rows_of_a_device_are_its_queries_then_its_keys_then_its_values(golden_llama: Path) -> None:
    whole = load_network(open_checkpoint(golden_llama / "llama.f16.gguf"), precision=Precision.INT8)
    before = _attention(whole)
    assert isinstance(before.qkv, Int8Linear)
    levels = np.asarray(before.qkv.weight[...])
    split = _attention(split_network(whole, shards=2, place=_kept))
    assert isinstance(split.qkv, Int8Linear)
    # 8 query heads and 2 key heads of 8.
    second = np.concatenate([levels[32:64], levels[72:80], levels[88:96]])
    np.testing.assert_array_equal(np.asarray(split.qkv.weight.get_raw_value())[48:], second)
    assert (split.heads, split.kv_heads) == (4, 1)
    assert isinstance(split.output, Int8Linear)
    assert split.output.axis == AXIS
    assert spec_of(split.output.weight) == along(1)
    assert spec_of(split.output.scale) == along(None)


def test_what_fills_a_share_up_is_zero(goldens: Path) -> None:
    """Two key heads on eight devices: four of them have none."""
    attention = _attention(_split(goldens / "qwen3", shards=8))
    assert isinstance(attention.qkv, Int8Linear)
    levels = np.asarray(attention.qkv.weight.get_raw_value())
    rows = levels.reshape(8, -1, levels.shape[1])
    assert rows[:4].any(axis=(1, 2)).all()
    assert not rows[4:].any()


def test_the_cache_has_the_heads_of_all_devices(goldens: Path) -> None:
    network = _split(goldens / "qwen3_5", shards=8)
    states, pages = network.config.layout[0], network.config.layout[3]
    assert isinstance(states, Recurrent)
    assert isinstance(pages, KeysAndValues)
    assert states.heads % 8 == 0
    assert states.gates == 4
    assert pages.kv_heads == 8


def test_a_table_that_is_embedding_and_head_stays_one(goldens: Path) -> None:
    network = _split(goldens / "qwen3", shards=2, precision=Precision.F32)
    assert isinstance(network.head, FloatLinear)
    assert network.head.weight.get_raw_value() is network.embedding.table.get_raw_value()


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gemma4_e", "gemma4_dense"])
def test_what_cannot_be_split_is_refused(family: str, goldens: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not split \w+ networks over several devices; set tensor_parallel"):
        _split(goldens / family, shards=2)


def test_native_kernels_run_on_one_device(golden_llama: Path) -> None:
    checkpoint = open_checkpoint(golden_llama / "llama.f16.gguf")
    native = outline_network(checkpoint, precision=Precision.INT8, kernels=Kernels.NATIVE)
    with pytest.raises(ConfigError, match="native kernels run on one device"):
        split_network(native, shards=2, place=_kept)


def _attention(network: Decoder) -> SelfAttention:
    mixer = network.blocks[0].mixer
    assert isinstance(mixer, SelfAttention)
    return mixer
