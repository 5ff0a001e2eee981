"""Loading over several devices, as far as one can tell with one; the rest is in `test_tensor_parallel.py`."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import along, in_order, mesh_here
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import ConfigError
from deployments.verifier.spreading import free_memory, load_spread, placed, wanted_kernels


def test_one_device_has_all_of_it(golden_llama: Path) -> None:
    checkpoint = open_checkpoint(golden_llama / "llama.f16.gguf")
    spread = load_spread(checkpoint, precision=Precision.F32, kernels=Kernels.XLA, devices=1)
    assert spread.mesh is None
    # 394,304 parameters; rotary frequencies are counted too.
    assert 4 * 394_304 <= spread.weights_nbytes < 4 * 394_304 + 1024


def test_what_is_one_array_stays_one_when_it_is_placed(golden_llama_rope3: Path) -> None:
    """As it is put on a chip: every leaf, in the order in which its dimensions are written."""
    checkpoint = open_checkpoint(golden_llama_rope3 / "llama_rope3.f32.gguf")
    network = load_network(checkpoint, precision=Precision.F32, kernels=Kernels.XLA)
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(network))]
    mesh = mesh_here(1)
    moved: list[int] = []

    def place(leaf: jax.Array) -> jax.Array:
        moved.append(id(leaf))
        placed_leaf: jax.Array = jax.device_put(leaf, in_order(mesh, spec=along(None), dims=leaf.ndim))
        return placed_leaf

    placed(network, place=place)
    after = jax.tree.leaves(nnx.state(network))
    head = jax.tree.leaves(nnx.state(network.head))

    assert len(moved) == len(set(moved)) == len(after) - 1
    assert head[0] is network.embedding.table.get_raw_value()
    assert {leaf.sharding.mesh for leaf in after} == {mesh}
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, np.asarray(new))


def test_more_devices_than_there_are_are_refused_before_anything_is_read(golden_llama: Path) -> None:
    checkpoint = open_checkpoint(golden_llama / "llama.f16.gguf")
    with pytest.raises(ConfigError, match="tensor_parallel is 64"):
        load_spread(checkpoint, precision=Precision.F32, kernels=Kernels.XLA, devices=64)


def test_native_kernels_are_for_one_device() -> None:
    assert wanted_kernels(Kernels.NATIVE, devices=1) is Kernels.NATIVE
    assert wanted_kernels(Kernels.AUTO, devices=2) is Kernels.XLA
    assert wanted_kernels(Kernels.PALLAS_INTERPRETED, devices=2) is Kernels.PALLAS_INTERPRETED
    with pytest.raises(ConfigError, match="native kernels run on one device; take kernels 'xla'"):
        wanted_kernels(Kernels.NATIVE, devices=2)


def test_devices_that_are_processors_share_the_machines_memory() -> None:
    one, four = free_memory(1), free_memory(4)
    assert one is not None
    assert four is not None
    assert four < one
