"""Brings the pages of a window's tiles from HBM into two buffers in turn, within a Pallas kernel for TPUs.

Pages come in blocks of a fixed number, counted from the slot's first position. Only those that the tile sees are
fetched. While a block is worked on, the next one is on its way, be it of this tile or of the one after. Knows no
attention.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array


class _Copy(Protocol):
    def start(self) -> None: ...

    def wait(self) -> None: ...


class Tables(NamedTuple):
    """Scalars in one row each; `turns` says which buffer takes the first block of each tile."""

    positions: jax.Ref
    pages: jax.Ref
    firsts: jax.Ref
    ends: jax.Ref
    turns: jax.Ref


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The blocks of all tiles, in order, as they come into the buffers.

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
        """A tile's first block and the one after its last; equal in a tile that sees nothing."""
        first = self.tables.firsts[tile] // self.length
        return first, jnp.where(self.is_live(tile), pl.cdiv(self.tables.ends[tile], self.length), first)

    def is_live(self, tile: Array, /) -> Array:
        """Whether it sees any page."""
        is_live: Array = self.tables.ends[tile] > self.tables.firsts[tile]
        return is_live

    def begin(self, tile: Array, /) -> None:
        """Fetches the first block, unless the tile before has seen to it."""
        was_fetched = (tile > 0) & self.is_live(jnp.maximum(tile - 1, 0))

        @pl.when(self.is_live(tile) & jnp.logical_not(was_fetched))
        def _() -> None:
            self._fetch(tile, block=self.of(tile)[0], buffer=self.tables.turns[tile])

    def take(self, tile: Array, /, *, block: Array) -> Array:
        """The buffer that holds the block, whole and quiet; the one that follows it is on its way to the other."""
        first, end = self.of(tile)
        buffer: Array = (self.tables.turns[tile] + block - first) % 2
        self._fetch_next(tile, block=block, end=end, buffer=1 - buffer)
        start, stop = self._seen(tile, block=block)

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
        after = jnp.minimum(tile + 1, self.tiles - 1)

        @pl.when(jnp.logical_not(is_last))
        def _() -> None:
            self._fetch(tile, block=block + 1, buffer=buffer)

        @pl.when(is_last & (after > tile) & self.is_live(after))
        def _() -> None:
            self._fetch(after, block=self.of(after)[0], buffer=buffer)

    def _fetch(self, tile: Array, *, block: Array, buffer: Array) -> None:
        @pl.loop(*self._seen(tile, block=block))
        def _(page: Array) -> None:
            self._copy(tile, block=block, page=page, buffer=buffer).start()

    def _seen(self, tile: Array, *, block: Array) -> tuple[Array, Array]:
        """The first page of the block that the tile sees, and the one after the last, counted from the block's own."""
        at = block * self.length
        return jnp.maximum(self.tables.firsts[tile] - at, 0), jnp.minimum(self.tables.ends[tile] - at, self.length)

    def _copy(self, tile: Array, *, block: Array, page: Array, buffer: Array) -> _Copy:
        slot_pages = self.tables.pages.shape[0] // self.tiles
        number = self.tables.pages[tile * slot_pages + block * self.length + page]
        copy: _Copy = pltpu.make_async_copy(self.cache.at[number], self.held.at[buffer, page], self.arrived.at[buffer])
        return copy
