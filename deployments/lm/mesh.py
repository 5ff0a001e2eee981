"""The devices a network is split over: one axis, which dimension of an array lies along it, and sums across it.

Knows arrays and devices, not networks. Where there is no axis, every sum is the device's own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32

from deployments.lm.cache.layout import CacheShape, KeysAndValues, RecurrentState
from deployments.messages.errors import ConfigError

AXIS = "model"
"""The only axis: what a device has of each split array."""

_SPLIT = "split"


def make_mesh(devices: Sequence[Any], /) -> Mesh:
    """All of these devices along the axis."""
    return Mesh(np.asarray(devices).reshape(-1), (AXIS,))


def mesh_here(count: int, /) -> Mesh:
    """The first `count` devices of this process. Raises `ConfigError` when there are fewer."""
    devices = jax.local_devices()
    if not 1 <= count <= len(devices):
        raise ConfigError(
            f"tensor_parallel is {count}, but this process has {len(devices)} {devices[0].platform} device(s); "
            f"set it to at most {len(devices)}"
        )
    return make_mesh(devices[:count])


def topology_of(mesh: Mesh | None, /) -> str:
    """How the devices are wired, as `2x2x1`; empty for one, and where they do not say."""
    devices = () if mesh is None or mesh.size == 1 else tuple(mesh.devices.flat)
    places = np.asarray([place for device in devices if (place := getattr(device, "coords", None)) is not None])
    return "x".join(str(extent) for extent in np.ptp(places, axis=0) + 1) if places.size else ""


def parameter(value: Any, /, *, split: int | None) -> nnx.Param[Any]:
    """A weight that knows which of its dimensions lies along the axis; `None` where every device has all of it."""
    weight: nnx.Param[Any] = nnx.Param(value)
    settle(weight, split=split)
    return weight


def settle(variable: nnx.Variable[Any], /, *, split: int | None) -> None:
    """Lets a weight know how it lies; arguments as in `parameter`."""
    variable.set_metadata(_SPLIT, split)


def is_placed(variable: nnx.Variable[Any], /) -> bool:
    """Whether a weight knows how it lies."""
    return _SPLIT in variable.get_metadata()


def spec_of(variable: nnx.Variable[Any], /) -> PartitionSpec:
    """How a weight lies on the devices."""
    return along(variable.get_metadata().get(_SPLIT))


def along(split: int | None, /) -> PartitionSpec:
    """An array whose dimension `split` lies along the axis."""
    return PartitionSpec() if split is None else PartitionSpec(*(None,) * split, AXIS)


def cache_specs(shape: CacheShape, /) -> Any:
    """How every array of a cache lies on the devices: each has what its own heads keep."""
    states: Any = {"matrices": along(1), "history": along(2), "pending_inputs": along(1), "pending_gates": along(None)}
    return tuple(along(2) if isinstance(layer, KeysAndValues) else RecurrentState(**states) for layer in shape.layout)


def in_order(mesh: Mesh, /, *, spec: PartitionSpec, dims: int) -> Format:
    """How an array that stays on these devices lies there: its dimensions as they are written.

    A TPU would put another one last where that saves space, and programs would turn whole arrays around: the table of
    embeddings in every window, the cache twice in every layer.
    """
    return Format(Layout(major_to_minor=tuple(range(dims))), NamedSharding(mesh, spec))


def total(partial: Array, /, *, axis: str | None) -> Array:
    """The sum over all devices. Of integers it is exact, in whatever order they are added."""
    return partial if axis is None else jax.lax.psum(partial, axis)


def greatest(own: Array, /, *, axis: str | None) -> Array:
    """The largest over all devices."""
    return own if axis is None else jax.lax.pmax(own, axis)


def first_of(count: int, /, *, axis: str | None) -> Int32[Array, ""]:
    """The number of a device's first element, where each has `count`."""
    return jnp.int32(0) if axis is None else jax.lax.axis_index(axis).astype(jnp.int32) * count


def gathered(own: Array, /, *, axis: str | None) -> Array:
    """The last dimension of all devices, one after another."""
    return own if axis is None else jax.lax.all_gather(own, axis, axis=own.ndim - 1, tiled=True)
