"""Whether a deployment fits a slice of chips, and what would: weights, cache, what programs need beside them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax

from deployments.lm.cache.layout import RecurrentState
from deployments.verifier.ahead import CompiledProgram
from deployments.verifier.blueprint import Blueprint, Sizes
from serve_app.compiling.chips import Slice, slices
from serve_app.compiling.hlo import Module

RESERVE = 512 * 2**20
"""Bytes on each device left to the runtime and to what travels to and from the host."""


@dataclass(frozen=True, kw_only=True)
class Resident:
    """What lies on each device while it serves, in bytes.

    Attributes:
        pages: keys and values; states: of recurrent layers.
    """

    weights: int
    pages: int
    states: int

    @property
    def total(self) -> int:
        return self.weights + self.pages + self.states


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Bytes on each device.

    Attributes:
        usable: what programs may fill, less the reserve.
        temporaries: of the program that needs most.
        context: the longest that would fit with these slots, in tokens; slots: the most that would with this context.
    """

    usable: int
    reserve: int
    resident: Resident
    temporaries: int
    code: int
    context: int
    slots: int

    @property
    def needed(self) -> int:
        return self.resident.total + self.temporaries + self.code

    @property
    def fits(self) -> bool:
        return self.needed <= self.usable


def planned(blueprint: Blueprint, /) -> Resident:
    """Before anything is compiled: without what the chip's tiles pad."""
    cache = blueprint.cache_taken
    states = [leaf for entry in cache if isinstance(entry, RecurrentState) for leaf in entry]
    # A table that is embedding and head is there once.
    weights = {id(leaf): _own_bytes(leaf) for leaf in blueprint.weights_taken}
    held = sum(map(_own_bytes, states))
    every = sum(map(_own_bytes, jax.tree.leaves(cache)))
    return Resident(weights=sum(weights.values()), pages=every - held, states=held)


def compiled(modules: Iterable[Module], /, *, plan: Resident) -> Resident:
    """As the programs take them: with what the chip's tiles pad."""
    sizes = {one.origin: one.size for module in modules for one in module.entry.parameters}
    weights = sum(size for name, size in sizes.items() if name.startswith("weights["))
    cache = sum(size for name, size in sizes.items() if name.startswith("cache["))
    if not cache or not weights:
        return plan
    pages = plan.pages * cache // (plan.pages + plan.states)
    # Every program takes the weights it uses; one that was not compiled may use others.
    return Resident(weights=max(weights, plan.weights), pages=pages, states=cache - pages)


def fit_of(resident: Resident, /, *, programs: Iterable[CompiledProgram], sizes: Sizes, on: Slice, longest: int) -> Fit:
    """What it comes to; `longest` is the longest context that the model was made for."""
    own = [program.memory for program in programs]
    temporaries = max((memory.temporaries + memory.outputs - memory.aliased for memory in own), default=0)
    code = sum(memory.code for memory in own)
    usable = on.usable - RESERVE
    page = resident.pages / sizes.shape.pages
    room = usable - resident.weights - temporaries - code
    # A scratch page beside those of slots.
    with_these = math.floor((room - resident.states) / page) - 1 if page else 0
    each = sizes.slot_pages * page + resident.states / sizes.slots
    return Fit(
        usable=usable,
        reserve=RESERVE,
        resident=resident,
        temporaries=temporaries,
        code=code,
        context=min(max(with_these // sizes.slots, 0) * sizes.shape.page_size, longest),
        # Each needs a row, and no window has more.
        slots=min(max(math.floor((room - page) / each), 0), sizes.ladder.widest.rows),
    )


def would_hold(resident: Resident, /, *, on: Slice, splits: bool) -> tuple[str, ...]:
    """Slices that have room for as much, spread over their devices; of one device where the network does not split."""
    whole = resident.total * on.devices
    can = (one for one in slices() if splits or one.devices == 1)
    return tuple(one.name for one in can if whole / one.devices <= one.usable - RESERVE)


def _own_bytes(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(map(int, shape)) * int(leaf.dtype.itemsize)
