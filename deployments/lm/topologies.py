"""Devices that are not here: libtpu compiles for chips of any topology it knows, on a machine that has none.

Knows how to ask libtpu, not what a chip can do. For processes that serve nothing: libtpu is told not to look
for chips.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from deployments.messages.errors import ConfigError

# libtpu asks the machine's owner what chips there are, and says on stderr that nobody answered.
_ALONE: Mapping[str, str] = MappingProxyType(
    {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }
)


def absent_devices(topology: str, /) -> tuple[jax.Device, ...]:
    """The devices of a topology, to lower and compile for.

    Args:
        topology: as libtpu names it: chip and extent, `v5e:2x4x1`.

    Raises:
        ConfigError: libtpu is not installed, or knows no such topology.
    """
    with _told(_ALONE):
        try:
            return tuple(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"cannot compile for {topology}: {first_line(error)}; install libtpu, or name a topology it knows"
            ) from error


@contextmanager
def without_cache() -> Iterator[None]:
    """Within it nothing compiled is kept: JAX writes programs for absent devices to its cache of compiled programs
    as well, and cannot read them again without the devices.

    For the whole process, whichever thread compiles.
    """
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    # It is decided once whether there is a cache, and asked again after this.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@contextmanager
def _told(settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that libtpu reads as it is loaded, where nobody has set them; gone again for the processes to come."""
    unset = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


def first_line(error: Exception, /) -> str:
    """What an exception says in one line, or its kind when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
