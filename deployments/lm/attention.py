"""Attention of a window's rows to the paged cache, in tiles of fixed shape.

A tile is four rows of one slot. Every tile is the same small product over the same pages in the same order (running
softmax, Milakov and Gimelshein, 2018), whatever the window holds beside it; so a row's result depends on its prefix
alone, bit by bit. Positions that a row does not see are masked, and weigh exactly nothing: pages after its last one
scale by one and add zero, pages before its first one leave the sums empty.

A page of the cache holds keys and then values, `[pages, 2, kv_heads, page_size, head_dim]`, or a key and a value side
by side, `[pages, 1, kv_heads, page_size, 2 head_dim]`. The second is for TPUs, whose vectors have 128 lanes: an array
whose last axis is 64 would be laid out there with pages innermost, and copied whole in every window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from deployments.lm.kernels import attention as native
from deployments.lm.kernels.attention import pallas
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
    cache: Float[Array, "pages halves kv_heads page_size depth"],
    *,
    keys: Float32[Array, "rows kv_heads head_dim"],
    values: Float32[Array, "rows kv_heads head_dim"],
    pages: Int[Array, " rows"],
    offsets: Int[Array, " rows"],
    kernels: Kernels = Kernels.XLA,
    in_loop: bool = False,
) -> Float[Array, "pages halves kv_heads page_size depth"]:
    """Puts each row's key and value at its place. Rows never share a place, except on the scratch page.

    A value that is not finite is written as zero: rows that do not see it multiply it by zero, and must get zero. Keys
    stay as they are, so that rows that do see it come out as wrong as it was.

    Args:
        in_loop: whether this happens in a loop on the device, where nothing but the loop says how the cache lies.
    """
    kept = values.astype(cache.dtype)
    both = [keys.astype(cache.dtype), jnp.where(jnp.isfinite(kept), kept, 0)]
    _, halves, kv_heads, page_size, depth = cache.shape
    joined = jnp.stack(both, axis=1) if halves == 2 else jnp.concatenate(both, axis=-1)
    if halves == 2 and kv_heads > 1 and not in_loop:
        written = cache.at[pages, :, :, offsets, :].set(joined, mode="promise_in_bounds")
        return _where_it_lies(written, kernels=kernels)
    # Vector by vector: with one axis less, and in a loop, XLA for TPUs would lay the cache out anew, each position's
    # vectors together.
    parts = halves * kv_heads
    places = (pages[:, None] * parts + jnp.arange(parts)) * page_size + offsets[:, None]
    flat = cache.reshape(-1, depth).at[places.ravel()].set(joined.reshape(-1, depth), mode="promise_in_bounds")
    written = flat.reshape(cache.shape)
    # What goes round a loop is of one type, and a memory space is a part of it.
    return written if in_loop else _where_it_lies(written, kernels=kernels)


def _where_it_lies(cache: Array, *, kernels: Kernels) -> Array:
    # Operations other than the kernel know no memory space.
    return pallas.kept_in_hbm(cache) if kernels is Kernels.PALLAS and pallas.serves(cache) else cache


def attend(
    queries: Float32[Array, "rows heads head_dim"],
    *,
    cache: Float[Array, "pages halves kv_heads page_size depth"],
    tiles: Tiles,
    kernels: Kernels = Kernels.XLA,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Float32[Array, "rows width"]:
    """Softmax attention of every row to its slot's positions up to its own.

    The native kernel serves bf16 caches whose heads and pages are multiples of 16, and no soft cap. The Pallas kernel
    serves heads that are multiples of 64 and pages that are multiples of 16.

    Args:
        scale: what scores are multiplied by; head_dim ** -0.5 when it is `None`.
        softcap: scores are bent by a hyperbolic tangent to stay within plus and minus this (Gemma 2); `None` does not.
        window: how many positions a row sees, its own included; all when it is `None`. Pages that no row of a tile
            sees are not read.
    """
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} positions shows a row nothing, not even itself; give 1 or more")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"scores cannot be kept within a soft cap of {softcap}; give a positive one, or none")
    head_dim, page_size = queries.shape[-1], cache.shape[-2]
    if kernels is Kernels.NATIVE and softcap is None and native.serves(cache):
        return native.attend(
            queries,
            cache=cache,
            rows=tiles.rows,
            positions=tiles.positions,
            pages=tiles.pages,
            scale=scale,
            window=window,
        )
    scaled = queries * (head_dim**-0.5 if scale is None else scale)
    by_tile = _by_tile(scaled, rows=tiles.rows, cache=cache)
    firsts, ends = _pages_seen(tiles.positions, page_size=page_size, window=window)
    if _is_pallas(kernels) and pallas.serves(cache):
        out = pallas.attend(
            by_tile,
            cache=cache,
            positions=tiles.positions,
            pages=tiles.pages,
            firsts=firsts,
            ends=ends,
            window=window,
            softcap=softcap,
            interpret=kernels is Kernels.PALLAS_INTERPRETED,
        )
    else:
        out = _attend_pairs(by_tile, cache=cache, tiles=tiles, firsts=firsts, ends=ends, window=window, softcap=softcap)
    return _by_row(out, tiles=tiles)


def _is_pallas(kernels: Kernels) -> bool:
    return kernels in (Kernels.PALLAS, Kernels.PALLAS_INTERPRETED)


def _by_tile(
    scaled: Float32[Array, "rows heads head_dim"],
    *,
    rows: Int[Array, "tiles lanes"],
    cache: Float[Array, "pages halves kv_heads page_size depth"],
) -> Float[Array, "tiles kv_heads queries head_dim"]:
    """The queries of a tile that share a key stand together, by lane."""
    kv_heads, head_dim = cache.shape[2], scaled.shape[-1]
    tiled = scaled[rows].reshape(*rows.shape, kv_heads, -1, head_dim).transpose(0, 2, 1, 3, 4)
    return tiled.reshape(len(rows), kv_heads, -1, head_dim).astype(cache.dtype)


def _by_row(out: Float32[Array, "tiles kv_heads queries head_dim"], *, tiles: Tiles) -> Float32[Array, "rows width"]:
    count, lanes = tiles.rows.shape
    _, kv_heads, _, head_dim = out.shape
    out = out.reshape(count, kv_heads, lanes, -1, head_dim).transpose(0, 2, 1, 3, 4)
    flat: Array = out.reshape(count * lanes, -1)[tiles.lane_of_row]
    return flat


def _attend_pairs(
    tiled: Float[Array, "tiles kv_heads queries head_dim"],
    *,
    cache: Float[Array, "pages halves kv_heads page_size depth"],
    tiles: Tiles,
    firsts: Int[Array, " tiles"],
    ends: Int[Array, " tiles"],
    window: int | None,
    softcap: float | None,
) -> Float32[Array, "tiles kv_heads queries head_dim"]:
    """Tiles are worked off in pairs, each over the pages its own rows see; pairs of padding cost nothing."""
    group = tiled.shape[2] // tiles.rows.shape[1]
    limits = jnp.repeat(tiles.positions, group, axis=1)[:, None, :, None]
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
            softcap=softcap,
        )
        return jax.lax.dynamic_update_slice_in_dim(out, done, at, axis=0)

    pairs = jnp.sum(pages_of_pair > 0)
    out: Array = jax.lax.fori_loop(0, pairs, pair, jnp.zeros(tiled.shape))
    return out


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
    cache: Float[Array, "pages halves kv_heads page_size depth"],
    limits: Int[Array, "tiles 1 queries 1"],
    pages: Int[Array, "tiles slot_pages"],
    firsts: Int[Array, " tiles"],
    count: Int[Array, ""],
    window: int | None,
    softcap: float | None,
) -> Float32[Array, "tiles kv_heads queries head_dim"]:
    """Each tile begins at its own first page. One that needs fewer than `count` goes on over masked ones."""
    page_size = cache.shape[3]

    def step(index: Int[Array, ""], state: _Running) -> _Running:
        number = firsts[:, None] + index
        page = jnp.take_along_axis(pages, number, axis=1, mode="clip")[:, 0]
        keys, values = _read(cache, page=page)
        positions = number[:, None, None] * page_size + jnp.arange(page_size)
        seen = positions <= limits
        if window is not None:
            seen &= positions > limits - window
        scores = _scores(queries, keys)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        return _accumulate(state, scores=jnp.where(seen, scores, _MASKED), values=values)

    empty = jnp.zeros((*queries.shape[:3], 1))
    start = _Running(peak=empty + _LOWEST, mass=empty, sums=jnp.zeros(queries.shape))
    end: _Running = jax.lax.fori_loop(0, count, step, start)
    # Lanes of padding have seen nothing.
    return end.sums / jnp.where(end.mass > 0, end.mass, 1)


def _read(
    cache: Float[Array, "pages halves kv_heads page_size depth"], *, page: Int[Array, " tiles"]
) -> tuple[Float[Array, "tiles kv_heads page_size head_dim"], Float[Array, "tiles kv_heads page_size head_dim"]]:
    """The keys and the values of one page for each tile."""
    parts = cache.shape[1]
    flat = cache.reshape(-1, *cache.shape[2:])
    if parts == 1:
        both = flat.at[page].get(mode="promise_in_bounds")
        return both[..., : both.shape[-1] // 2], both[..., both.shape[-1] // 2 :]
    keys = flat.at[2 * page].get(mode="promise_in_bounds")
    return keys, flat.at[2 * page + 1].get(mode="promise_in_bounds")


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
