"""Brings the pages of a window's tiles from HBM into two buffers in turn, within a Pallas kernel for TPUs.

Pages come in blocks of a fixed number, counted from the slot's first position. Only those that the tile sees are
fetched; for two tiles that are a pair, those that either sees, once, at the step of the first. While a block is worked
on, the next one is on its way, be it of this step or of the next one that needs any. Knows no attention.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from deployments.lm.kernels.attention.steps import Tables


class _Copy(Protocol):
    def start(self) -> None: ...

    def wait(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The blocks of all steps, in order, as they come into the buffers.

    Attributes:
        cache: `[pages, ...]`, values in the last part of each page.
        held: the buffers, `[2, length, ...]`.
        arrived: a semaphore for each.
    """

    tables: Tables
    cache: jax.Ref
    held: jax.Ref
    arrived: jax.Ref
    tiles: int

    @property
    def length(self) -> int:
        """In pages."""
        length: int = self.held.shape[1]
        return length

    def of(self, tile: Array, /) -> tuple[Array, Array]:
        """The first block of a tile's step and the one after its last; equal where nothing is fetched."""
        first = self.tables.starts[tile] // self.length
        return first, jnp.where(self._fetches(tile), pl.cdiv(self.tables.stops[tile], self.length), first)

    def seeing(self, tile: Array, /, *, block: Array) -> tuple[Array, Array]:
        """Which see any of a block of a tile's step: 0 is the tile, 1 the other one of its pair. From, and up to."""
        is_seen_later = self._leads(tile) & self._is_seen(jnp.minimum(tile + 1, self.tiles - 1), block=block)
        return jnp.where(self._is_seen(tile, block=block), 0, 1), jnp.where(is_seen_later, 2, 1)

    def begin(self, tile: Array, /) -> None:
        """Fetches the first block, unless the step that fetched last has seen to it."""
        before = tile - 1 - self.tables.follows[jnp.maximum(tile - 1, 0)]
        was_fetched = (tile > 0) & self._fetches(jnp.maximum(before, 0))

        @pl.when(self._fetches(tile) & jnp.logical_not(was_fetched))
        def _() -> None:
            self._fetch(tile, block=self.of(tile)[0], buffer=self.tables.turns[tile])

    def take(self, tile: Array, /, *, block: Array) -> Array:
        """The buffer that holds the block, whole and quiet; the one that follows it is on its way to the other."""
        first, end = self.of(tile)
        buffer: Array = (self.tables.turns[tile] + block - first) % 2
        self._fetch_next(tile, block=block, end=end, buffer=1 - buffer)
        start, stop = self._fetched(tile, block=block)

        @pl.loop(start, stop)
        def _(page: Array) -> None:
            self._copy(tile, block=block, page=page, buffer=buffer).wait()

        # What lies where no page was fetched weighs nothing, but it must be a number.
        nothing = jnp.zeros(self.held.shape[3:], self.held.dtype)

        @pl.loop(0, start)
        def _(page: Array) -> None:
            self.held[buffer, page, self.held.shape[2] - 1] = nothing

        @pl.loop(stop, self.length)
        def _(page: Array) -> None:
            self.held[buffer, page, self.held.shape[2] - 1] = nothing

        return buffer

    def _fetch_next(self, tile: Array, *, block: Array, end: Array, buffer: Array) -> None:
        is_last = block + 1 == end
        after = tile + jnp.where(self._leads(tile), 2, 1)
        following = jnp.minimum(after, self.tiles - 1)

        @pl.when(jnp.logical_not(is_last))
        def _() -> None:
            self._fetch(tile, block=block + 1, buffer=buffer)

        @pl.when(is_last & (after < self.tiles) & self._fetches(following))
        def _() -> None:
            self._fetch(following, block=self.of(following)[0], buffer=buffer)

    def _fetch(self, tile: Array, *, block: Array, buffer: Array) -> None:
        @pl.loop(*self._fetched(tile, block=block))
        def _(page: Array) -> None:
            self._copy(tile, block=block, page=page, buffer=buffer).start()

    def _fetches(self, tile: Array) -> Array:
        """Whether any page is fetched at the tile's step."""
        fetches: Array = self.tables.stops[tile] > self.tables.starts[tile]
        return fetches

    def _leads(self, tile: Array) -> Array:
        after = tile + 1
        return (after < self.tiles) & (self.tables.follows[jnp.minimum(after, self.tiles - 1)] > 0)

    def _is_seen(self, tile: Array, *, block: Array) -> Array:
        at = block * self.length
        is_seen: Array = (self.tables.firsts[tile] < at + self.length) & (self.tables.ends[tile] > at)
        return is_seen

    def _fetched(self, tile: Array, *, block: Array) -> tuple[Array, Array]:
        """The first page fetched of the block, and the one after the last, counted from the block's own first."""
        at = block * self.length
        return jnp.maximum(self.tables.starts[tile] - at, 0), jnp.minimum(self.tables.stops[tile] - at, self.length)

    def _copy(self, tile: Array, *, block: Array, page: Array, buffer: Array) -> _Copy:
        slot_pages = self.tables.pages.shape[0] // self.tiles
        number = self.tables.pages[tile * slot_pages + block * self.length + page]
        copy: _Copy = pltpu.make_async_copy(self.cache.at[number], self.held.at[buffer, page], self.arrived.at[buffer])
        return copy
