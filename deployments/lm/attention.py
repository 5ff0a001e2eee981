"""Attention of a window's rows to the paged cache, in tiles of fixed shape.

A tile is four rows of one slot. Every tile is the same small product over the same pages in the same order (running
softmax, Milakov and Gimelshein, 2018), whatever the window holds beside it; so a row's result depends on its prefix
alone, bit by bit. Positions that a row does not see are masked, and weigh exactly nothing: pages after its last one
scale by one and add zero, pages before its first one leave the sums empty.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from deployments.lm.kernels import attention as native
from deployments.lm.kernels.choice import Kernels
from deployments.lm.sums import row_sum

TILE_ROWS = 4
PAIR = 2
# What a masked position scores. Far below where peaks begin, so that it weighs nothing even before any other is seen.
_MASKED = -1e30
_LOWEST = -1e29


class Tiles(NamedTuple):
    """Which rows form each tile and where their slot's positions lie.

    Attributes:
        rows: row numbers; padding lanes may name any row. The number of tiles is even, and padding tiles come last.
        positions: each lane's absolute position; -1 for a padding lane.
        pages: the slot's page table; entries past its end are the scratch page.
        lane_of_row: for each row of the window its lane in `rows`, flattened.
    """

    rows: Int[Array, "tiles lanes"]
    positions: Int[Array, "tiles lanes"]
    pages: Int[Array, "tiles slot_pages"]
    lane_of_row: Int[Array, " rows"]


def write(
    cache: Float[Array, "pages 2 kv_heads page_size head_dim"],
    *,
    keys: Float32[Array, "rows kv_heads head_dim"],
    values: Float32[Array, "rows kv_heads head_dim"],
    pages: Int[Array, " rows"],
    offsets: Int[Array, " rows"],
) -> Float[Array, "pages 2 kv_heads page_size head_dim"]:
    """Puts each row's key and value at its place. Rows never share a place, except on the scratch page.

    A value that is not finite is written as zero: rows that do not see it multiply it by zero, and must get zero. Keys
    stay as they are, so that rows that do see it come out as wrong as it was.
    """
    kept = values.astype(cache.dtype)
    both = jnp.stack([keys.astype(cache.dtype), jnp.where(jnp.isfinite(kept), kept, 0)], axis=1)
    return cache.at[pages, :, :, offsets, :].set(both, mode="promise_in_bounds")


def attend(
    queries: Float32[Array, "rows heads head_dim"],
    *,
    cache: Float[Array, "pages 2 kv_heads page_size head_dim"],
    tiles: Tiles,
    kernels: Kernels = Kernels.XLA,
    scale: float | None = None,
    window: int | None = None,
) -> Float32[Array, "rows width"]:
    """Softmax attention of every row to its slot's positions up to its own.

    The native kernel serves bf16 caches whose heads and pages are multiples of 16.

    Args:
        scale: what scores are multiplied by; head_dim ** -0.5 when it is `None`.
        window: how many positions a row sees, its own included; all when it is `None`. Pages that no row of a tile
            sees are not read.
    """
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} positions shows a row nothing, not even itself; give 1 or more")
    served = cache.dtype == jnp.bfloat16 and native.serves(head_dim=cache.shape[-1], page_size=cache.shape[-2])
    if kernels is Kernels.NATIVE and served:
        return native.attend(
            queries,
            cache=cache,
            rows=tiles.rows,
            positions=tiles.positions,
            pages=tiles.pages,
            scale=scale,
            window=window,
        )
    scaled = queries * (cache.shape[-1] ** -0.5 if scale is None else scale)
    return _attend_pairs(scaled, cache=cache, tiles=tiles, window=window)


def _attend_pairs(
    scaled: Float32[Array, "rows heads head_dim"],
    *,
    cache: Float[Array, "pages 2 kv_heads page_size head_dim"],
    tiles: Tiles,
    window: int | None,
) -> Float32[Array, "rows width"]:
    """Tiles are worked off in pairs, each over the pages its own rows see; pairs of padding cost nothing."""
    kv_heads, page_size, head_dim = cache.shape[2:]
    count, lanes = tiles.rows.shape
    group = scaled.shape[1] // kv_heads
    tiled = scaled[tiles.rows].reshape(count, lanes, kv_heads, group, head_dim).transpose(0, 2, 1, 3, 4)
    tiled = tiled.reshape(count, kv_heads, lanes * group, head_dim).astype(cache.dtype)
    limits = jnp.repeat(tiles.positions, group, axis=1)[:, None, :, None]
    firsts, ends = _pages_seen(tiles.positions, page_size=page_size, window=window)
    pages_of_pair = jnp.max((ends - firsts).reshape(-1, PAIR), axis=1)

    def pair(index: Int[Array, ""], out: Array) -> Array:
        at = index * PAIR
        own = (jax.lax.dynamic_slice_in_dim(x, at, PAIR) for x in (tiled, limits, tiles.pages, firsts))
        queries, limit, table, first = own
        done = _attend_pages(
            queries,
            cache=cache,
            limits=limit,
            pages=table,
            firsts=first,
            count=pages_of_pair[index],
            window=window,
        )
        return jax.lax.dynamic_update_slice_in_dim(out, done, at, axis=0)

    pairs = jnp.sum(pages_of_pair > 0)
    out = jax.lax.fori_loop(0, pairs, pair, jnp.zeros(tiled.shape))
    out = out.reshape(count, kv_heads, lanes, group, head_dim).transpose(0, 2, 1, 3, 4)
    flat: Array = out.reshape(count * lanes, -1)[tiles.lane_of_row]
    return flat


def _pages_seen(
    positions: Int[Array, "tiles lanes"], *, page_size: int, window: int | None
) -> tuple[Int[Array, " tiles"], Int[Array, " tiles"]]:
    """The first page that some lane of each tile sees, and the one after the last; none of a tile of padding."""
    last = jnp.max(positions, axis=1)
    if window is None:
        return jnp.zeros_like(last), last // page_size + 1
    lowest = jnp.min(jnp.where(positions < 0, last[:, None], positions), axis=1)
    return jnp.maximum(lowest - window + 1, 0) // page_size, last // page_size + 1


def _attend_pages(
    queries: Float[Array, "tiles kv_heads queries head_dim"],
    *,
    cache: Float[Array, "pages 2 kv_heads page_size head_dim"],
    limits: Int[Array, "tiles 1 queries 1"],
    pages: Int[Array, "tiles slot_pages"],
    firsts: Int[Array, " tiles"],
    count: Int[Array, ""],
    window: int | None,
) -> Float32[Array, "tiles kv_heads queries head_dim"]:
    """Each tile begins at its own first page. One that needs fewer than `count` goes on over masked ones."""
    kv_heads, page_size, head_dim = cache.shape[2:]
    halves = cache.reshape(-1, kv_heads, page_size, head_dim)

    def step(index: Int[Array, ""], state: _Running) -> _Running:
        number = firsts[:, None] + index
        page = jnp.take_along_axis(pages, number, axis=1, mode="clip")[:, 0]
        keys = halves.at[2 * page].get(mode="promise_in_bounds")
        values = halves.at[2 * page + 1].get(mode="promise_in_bounds")
        positions = number[:, None, None] * page_size + jnp.arange(page_size)
        seen = positions <= limits
        if window is not None:
            seen &= positions > limits - window
        return _accumulate(state, scores=jnp.where(seen, _scores(queries, keys), _MASKED), values=values)

    empty = jnp.zeros((*queries.shape[:3], 1))
    start = _Running(peak=empty + _LOWEST, mass=empty, sums=jnp.zeros(queries.shape))
    end: _Running = jax.lax.fori_loop(0, count, step, start)
    # Lanes of padding have seen nothing.
    return end.sums / jnp.where(end.mass > 0, end.mass, 1)


class _Running(NamedTuple):
    peak: Float32[Array, "tiles kv_heads queries 1"]
    mass: Float32[Array, "tiles kv_heads queries 1"]
    sums: Float32[Array, "tiles kv_heads queries head_dim"]


def _scores(
    queries: Float[Array, "tiles kv_heads queries head_dim"], keys: Float[Array, "tiles kv_heads page_size head_dim"]
) -> Float32[Array, "tiles kv_heads queries page_size"]:
    return jnp.einsum(
        "tkqd,tkpd->tkqp", queries, keys, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _accumulate(
    state: _Running,
    *,
    scores: Float32[Array, "tiles kv_heads queries page_size"],
    values: Float[Array, "tiles kv_heads page_size head_dim"],
) -> _Running:
    peak = jnp.maximum(state.peak, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - peak)
    shrink = jnp.exp(state.peak - peak)
    added = jnp.einsum(
        "tkqp,tkpd->tkqd",
        weights.astype(values.dtype),
        values,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    mass = state.mass * shrink + row_sum(weights)
    return _Running(peak=peak, mass=mass, sums=state.sums * shrink + added)
