"""The axis of devices, where one is enough to see it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.cache.layout import CacheShape, KeysAndValues, Recurrent
from deployments.lm.mesh import (
    AXIS,
    along,
    cache_specs,
    first_of,
    gathered,
    greatest,
    is_placed,
    make_mesh,
    mesh_here,
    parameter,
    spec_of,
    topology_of,
    total,
)
from deployments.lm.topologies import absent_devices
from deployments.messages.errors import ConfigError


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel is 99, but this process has \d+ cpu device"):
        mesh_here(99)


def test_a_weight_knows_how_it_lies() -> None:
    assert spec_of(parameter(jnp.zeros((2, 4)), split=1)) == along(1)
    whole = parameter(jnp.zeros(2), split=None)
    assert is_placed(whole)
    assert spec_of(whole) == along(None)


def test_a_cache_lies_by_heads_and_channels() -> None:
    states = Recurrent(heads=2, key_dim=4, value_dim=4, channels=24, taps=4)
    shape = CacheShape(
        layout=(KeysAndValues(kv_heads=2, head_dim=8), states), pages=3, page_size=4, states=4, pending=2
    )
    arrays = jax.tree.leaves(shape.zeros(jnp.dtype("bfloat16")))
    for spec, array in zip(jax.tree.leaves(cache_specs(shape)), arrays, strict=True):
        assert len(spec) <= array.ndim
    assert cache_specs(shape)[0] == along(2)


def test_without_an_axis_everything_is_the_devices_own() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    for exchange in (total, greatest, gathered):
        assert exchange(x, axis=None) is x
    assert first_of(3, axis=None) == 0


def test_over_an_axis() -> None:
    """Of one device: the same programs, with the exchanges in them."""
    mesh = mesh_here(1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def exchanged(own: jax.Array) -> tuple[jax.Array, ...]:
        numbers = first_of(3, axis=AXIS)
        return total(own, axis=AXIS), greatest(own, axis=AXIS), gathered(own, axis=AXIS), numbers

    run = jax.shard_map(exchanged, mesh=mesh, in_specs=along(1), out_specs=along(None), check_vma=False)
    *same, first = jax.jit(run)(x)
    for array in same:
        np.testing.assert_array_equal(array, x)
    assert first == 0


def test_topologies_are_named_as_chips_are_wired() -> None:
    pytest.importorskip("libtpu", reason="only libtpu knows how chips are wired")
    assert topology_of(make_mesh(absent_devices("v6e:2x4x1"))) == "2x4x1"
    assert topology_of(mesh_here(1)) == ""
    assert topology_of(None) == ""
