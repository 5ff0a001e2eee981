"""Which pages of a window's tiles are fetched at which step of the Pallas kernel, whose grid has one step for a tile.

Consecutive tiles of one page table share what is fetched, two at a time. Knows no attention and no cache.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PAIR = 2
"""So many tiles share what is fetched."""


class Tables(NamedTuple):
    """Scalars in one row each.

    Attributes:
        firsts, ends: the pages that each tile sees.
        starts, stops: those fetched at its step: of a pair all at the first tile's, none at the second's.
        turns: which of two buffers takes the first block of each step.
        follows: 1 for the second tile of a pair.
    """

    positions: Array | jax.Ref
    pages: Array | jax.Ref
    firsts: Array | jax.Ref
    ends: Array | jax.Ref
    starts: Array | jax.Ref
    stops: Array | jax.Ref
    turns: Array | jax.Ref
    follows: Array | jax.Ref


def tables_of(
    positions: Int[Array, "tiles lanes"],
    /,
    *,
    pages: Int[Array, "tiles slot_pages"],
    firsts: Int[Array, " tiles"],
    ends: Int[Array, " tiles"],
    block: int,
) -> Tables:
    """For tiles as in `lm.attention.Tiles`, whose pages are fetched in blocks of so many."""
    ends = jnp.minimum(ends, pages.shape[1])
    follows = _follows(pages, firsts=firsts, ends=ends)
    leads = jnp.roll(follows, -1)
    starts = jnp.where(leads, jnp.minimum(firsts, jnp.roll(firsts, -1)), firsts)
    stops = jnp.where(leads, jnp.maximum(ends, jnp.roll(ends, -1)), jnp.where(follows, starts, ends))
    blocks = jnp.where(stops > starts, -(-stops // block) - starts // block, 0)
    turns = (jnp.cumsum(blocks) - blocks) % 2
    tables = (positions.ravel(), pages.ravel(), firsts, ends, starts, stops, turns, follows)
    return Tables._make(table.astype(jnp.int32) for table in tables)


def _follows(
    pages: Int[Array, "tiles slot_pages"], *, firsts: Int[Array, " tiles"], ends: Int[Array, " tiles"]
) -> Bool[Array, " tiles"]:
    """Every other tile of a run in which each has the page table of the one before, and no gap between what both see.

    Never the first tile of all, so that what is rolled around leads nobody.
    """
    number = jnp.arange(len(pages))
    pages_before, firsts_before, ends_before = (jnp.roll(table, 1, axis=0) for table in (pages, firsts, ends))
    sees = (ends > firsts) & (ends_before > firsts_before)
    touches = (firsts <= ends_before) & (firsts_before <= ends)
    joins = (number > 0) & jnp.all(pages == pages_before, axis=1) & sees & touches
    since: Array = number - jax.lax.cummax(jnp.where(joins, 0, number))
    return since % 2 == 1
