"""A checkpoint's network on the devices of this process that share it, each shard where it belongs.

Knows checkpoints and devices; compiles nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import along, in_order, mesh_here
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.lm.splitting import split_network
from deployments.messages.errors import ConfigError
from deployments.verifier.memory import free_host_memory


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A network and the devices that share it.

    Attributes:
        mesh: `None` for the one device that has all of it.
    """

    network: Decoder
    mesh: Mesh | None

    @property
    def weights_nbytes(self) -> int:
        """Bytes of weights on each device."""
        # A table that is embedding and head lies there once.
        leaves = {id(leaf): leaf for leaf in jax.tree.leaves(nnx.state(self.network))}.values()
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)


def wanted_kernels(wanted: Kernels, /, *, devices: int) -> Kernels:
    """What to choose kernels from when so many devices share the network.

    Raises:
        ConfigError: native kernels were asked for, which run on one device.
    """
    if devices == 1:
        return wanted
    if wanted is Kernels.NATIVE:
        raise ConfigError("native kernels run on one device; take kernels 'xla', or set tensor_parallel to 1")
    return Kernels.XLA if wanted is Kernels.AUTO and jax.default_backend() == "cpu" else wanted


def load_spread(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels, devices: int) -> Spread:
    """The network over the first `devices` of this process.

    Raises:
        CheckpointError: the file cannot be served.
        ConfigError: there are fewer devices, or the network cannot be split.
    """
    if devices == 1 and jax.default_backend() == "cpu":
        return Spread(network=load_network(checkpoint, precision=precision, kernels=kernels), mesh=None)
    mesh = mesh_here(devices)

    def place(leaf: Any, split: int | None) -> Any:
        return jax.device_put(leaf, in_order(mesh, spec=along(split), dims=leaf.ndim))

    if devices == 1:
        network = load_network(checkpoint, precision=precision, kernels=kernels)
        return Spread(network=placed(network, place=lambda leaf: place(leaf, None)), mesh=mesh)
    # No device has room for all of it.
    with _on_host():
        whole = load_network(checkpoint, precision=precision, kernels=kernels)
    return Spread(network=split_network(whole, shards=devices, place=place), mesh=mesh)


def placed(network: Decoder, /, *, place: Callable[[Any], Any]) -> Decoder:
    """The network with each leaf put where it shall be, one by one; what lies there once stays one."""
    alike: dict[int, list[nnx.Variable[Any]]] = {}
    for _, variable in nnx.iter_graph(network):
        if isinstance(variable, nnx.Variable):
            alike.setdefault(id(variable.get_raw_value()), []).append(variable)
    for variables in alike.values():
        there = place(variables[0].get_raw_value())
        for variable in variables:
            variable.set_raw_value(there)
    return network


def free_memory(devices: int, /) -> int | None:
    """Bytes that each device has left for its share; devices that are the machine's processors share its memory."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        free = free_host_memory()
        return None if free is None else free // devices
    counted = [stats for device in jax.local_devices()[:devices] if (stats := device.memory_stats())]
    return min((stats["bytes_limit"] - stats["bytes_in_use"] for stats in counted), default=None)


def _on_host() -> AbstractContextManager[Any]:
    if jax.default_backend() == "cpu":
        return nullcontext()
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "a model is read into the machine's memory before devices share it, but JAX_PLATFORMS leaves the "
            "processor out; add ',cpu' to it"
        ) from error
    device: AbstractContextManager[Any] = jax.default_device(host)
    return device
