"""TPU chips and slices: what Google publishes of each, and what its compiler lets a program use. The only such table.

Published figures are of whole chips, from docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x}. Where those pages are
silent they are from JAX's own table (`jax/_src/tpu_info.py`): int8 on v5p, and VMEM. No int8 rate of tpu7x is
published; it is taken to be that of bf16. A slice is named for its chips, not for its cores as Google's machine types
of v5p are.

`usable` is what libtpu 0.0.50 refuses to exceed ("exceeds available HBM"): a little less than there is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deployments.messages.errors import ConfigError

_GB, _GIB, _MIB = 10**9, 2**30, 2**20
_GBPS, _TERA = 10**9, 10**12


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip. Rates are per second.

    Attributes:
        memory: HBM in bytes, as it is sold.
        usable: the part of it that programs may fill.
        hbm: bytes between HBM and the cores.
        bf16, int8: operations, a multiplication and an addition being two.
        interconnect: bytes between chips, all links and both directions together.
        links: to neighbours, in a slice that has them on all sides.
        vmem: bytes of each core's own fast memory.
        devices: as JAX counts them.
    """

    name: str
    memory: int
    usable: int
    hbm: float
    bf16: float
    int8: float
    interconnect: float
    links: int
    vmem: int
    devices: int = 1

    @property
    def ring(self) -> float:
        """Bytes per second that a chip sends to its neighbour in a ring of small slices: over two links, one way."""
        return self.interconnect / 2 * 2 / self.links


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "v5e": Chip(
            name="v5e",
            memory=16 * _GB,
            usable=int(15.75 * _GIB),
            hbm=819 * _GBPS,
            bf16=197 * _TERA,
            int8=393 * _TERA,
            interconnect=400 * _GBPS,
            links=4,
            vmem=128 * _MIB,
        ),
        "v6e": Chip(
            name="v6e",
            memory=32 * _GB,
            usable=int(31.24 * _GIB),
            hbm=1638 * _GBPS,
            bf16=918 * _TERA,
            int8=1836 * _TERA,
            interconnect=800 * _GBPS,
            links=4,
            vmem=128 * _MIB,
        ),
        "v5p": Chip(
            name="v5p",
            memory=95 * _GIB,
            usable=int(95.73 * _GIB),
            hbm=2765 * _GBPS,
            bf16=459 * _TERA,
            int8=918 * _TERA,
            interconnect=1200 * _GBPS,
            links=6,
            vmem=64 * _MIB,
        ),
        "tpu7x": Chip(
            name="tpu7x",
            memory=192 * _GIB,
            usable=2 * int(94.74 * _GIB),
            hbm=7380 * _GBPS,
            bf16=2307 * _TERA,
            int8=2307 * _TERA,
            interconnect=1200 * _GBPS,
            links=6,
            vmem=64 * _MIB,
            devices=2,
        ),
    }
)
"""By name."""

_EXTENTS: Mapping[int, str] = MappingProxyType({1: "1x1x1", 4: "2x2x1", 8: "2x4x1"})
_SLICES = ("v5e-1", "v5e-4", "v5e-8", "v5p-1", "v5p-4", "v6e-1", "v6e-4", "v6e-8", "tpu7x-4")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Chips of one kind that serve a model together."""

    chip: Chip
    count: int

    @property
    def name(self) -> str:
        return f"{self.chip.name}-{self.count}"

    @property
    def topology(self) -> str:
        """As libtpu names it."""
        return f"{self.chip.name}:{_EXTENTS[self.count]}"

    @property
    def devices(self) -> int:
        """How many there are, as JAX counts them."""
        return self.count * self.chip.devices

    @property
    def usable(self) -> int:
        """Bytes of HBM that programs may fill on each device."""
        return self.chip.usable // self.chip.devices


def slices() -> tuple[Slice, ...]:
    """All that programs can be compiled for."""
    parts = (name.rsplit("-", 1) for name in _SLICES)
    return tuple(Slice(chip=CHIPS[chip], count=int(count)) for chip, count in parts)


def slice_named(name: str, /) -> Slice:
    """Raises `ConfigError` for one that is not known."""
    found = next((one for one in slices() if one.name == name), None)
    if found is None:
        raise ConfigError(f"'{name}' is no slice that is known here; --chip is one of {', '.join(_SLICES)}")
    return found
