"""Attention to the paged cache on TPUs, by a Pallas kernel that also runs, interpreted, on processors.

`lm.attention` is its specification: every tile is the same arithmetic over the pages its rows see (running softmax,
Milakov and Gimelshein, 2018), whatever the window holds beside it. There is no other case for single rows.

One step of the grid is one tile. The cache stays in HBM as it is, and blocks of consecutive pages are fetched into two
buffers in turn: a page with the keys and values of all heads in one copy, and only pages that some row of the tile
sees. While the last block of a tile is worked on, the first one of the next tile is on its way. Blocks are counted
from the slot's first position, so which positions meet in one product does not depend on the tile.

A window reads `hbm_bytes` of the cache and nothing twice. Fast memory holds two blocks of 1 MiB (or of one page, where
that is more) and two tiles of queries and of results; see `vmem_bytes`. Scalar memory holds the page tables. Knows no
networks, no slots and no chip.
"""

from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Float32, Int

from deployments.lm.kernels.attention.blocks import Blocks, Tables

# Queries of a head are padded to this many, with which vectors of either cache type are full.
_ROWS = 16
_VECTOR = 128
_BLOCK_BYTES, _BLOCK_POSITIONS = 1 << 20, 512
# What a masked position scores, and where peaks begin: as in the specification.
_MASKED, _LOWEST = -1e30, -1e29


def serves(cache: Float[Array, "pages halves kv_heads page_size depth"], /) -> bool:
    """Whether the kernel can read this cache. One whose last axis is 64 it can, but XLA copies it first."""
    return cache.shape[4] % (_VECTOR // 2) == 0 and cache.shape[3] % _ROWS == 0


def attend(
    queries: Float[Array, "tiles kv_heads queries head_dim"],
    *,
    cache: Float[Array, "pages halves kv_heads page_size depth"],
    positions: Int[Array, "tiles lanes"],
    pages: Int[Array, "tiles slot_pages"],
    firsts: Int[Array, " tiles"],
    ends: Int[Array, " tiles"],
    window: int | None = None,
    softcap: float | None = None,
    interpret: bool = False,
) -> Float32[Array, "tiles kv_heads queries head_dim"]:
    """What each tile's queries see; zero for those of padding lanes.

    Args:
        queries: scaled, rounded as the cache is, and sorted by lane within each head.
        positions, pages: as in `lm.attention.Tiles`.
        firsts, ends: the first page that some row of each tile sees, and the one after its last; tiles of padding see
            none, and cost a step of the grid.
        interpret: whether the program is for a processor. Programs for TPUs are lowered by processors too, so whoever
            lowers must say so; for a chip that is not there, within `jax.sharding.use_abstract_mesh` or a `shard_map`
            over its devices.
    """
    asked, head_dim = queries.shape[2:]
    block = _block_pages(cache)
    ends = jnp.minimum(ends, pages.shape[1])
    blocks = jnp.where(ends > firsts, pl.cdiv(ends, block) - firsts // block, 0)
    turns = (jnp.cumsum(blocks) - blocks) % 2
    # Where a key and a value lie side by side, a query meets the key and zeros, and its result stands with the value.
    padded = jnp.pad(queries, ((0, 0), (0, 0), (0, _padded(asked) - asked), (0, cache.shape[4] - head_dim)))
    call = pl.pallas_call(
        partial(_attend_tile, group=asked // positions.shape[1], window=window, softcap=softcap),
        grid_spec=_grid_spec(padded.shape, cache=cache),
        out_shape=jax.ShapeDtypeStruct(padded.shape, jnp.float32),
        # Tiles follow each other: each fetches for the next one.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        name="outrider_attend",
        interpret=interpret,
    )
    tables = (positions.ravel(), pages.ravel(), firsts, ends, turns)
    seen: Array = call(*(table.astype(jnp.int32) for table in tables), padded, cache)
    return seen[:, :, :asked, -head_dim:]


def kept_in_hbm(cache: Array, /) -> Array:
    """The cache as it is. A compiler with room in VMEM would else bring a whole layer there to write a few rows, and
    carry it back."""
    kept: Array = pltpu.with_memory_space_constraint(cache, pltpu.HBM)
    return kept


def hbm_bytes(pages_seen: int, /, *, cache: Array | jax.ShapeDtypeStruct, tiles: int, queries: int) -> int:
    """What the kernel moves between HBM and VMEM in one window, which XLA's cost analysis cannot see.

    Args:
        pages_seen: by each tile, summed over the tiles: a slot with several tiles counts once for each.
        tiles: all of them: the queries and results of padding travel as well.
        queries: of a tile that share a key: its lanes times the heads that share one.
    """
    return pages_seen * _page_bytes(cache) + tiles * _tile_bytes(cache, queries=queries)


def vmem_bytes(*, cache: Array | jax.ShapeDtypeStruct, queries: int) -> int:
    """What the kernel holds in VMEM beside what it is computing."""
    running = 2 * cache.shape[2] * _padded(queries) * _VECTOR * 4
    return 2 * _block_pages(cache) * _page_bytes(cache) + 2 * _tile_bytes(cache, queries=queries) + running


def _page_bytes(cache: Array | jax.ShapeDtypeStruct) -> int:
    return prod(cache.shape[1:]) * cache.dtype.itemsize


def _tile_bytes(cache: Array | jax.ShapeDtypeStruct, *, queries: int) -> int:
    _, _, kv_heads, _, width = cache.shape
    return kv_heads * _padded(queries) * width * (cache.dtype.itemsize + 4)


def _padded(queries: int) -> int:
    return -(-queries // _ROWS) * _ROWS


def _block_pages(cache: Array | jax.ShapeDtypeStruct) -> int:
    """Pages that are fetched and worked on together; the same for every window over such a cache.

    Many where they are small: a copy takes a while however short it is.
    """
    return max(1, min(_BLOCK_BYTES // _page_bytes(cache), _BLOCK_POSITIONS // cache.shape[3]))


def _grid_spec(tiled: tuple[int, ...], *, cache: Array) -> pltpu.PrefetchScalarGridSpec:
    tile = pl.BlockSpec((None, *tiled[1:]), lambda tile, *_: (tile, 0, 0, 0))
    running = pltpu.VMEM((*tiled[1:3], 1), jnp.float32)
    held = pltpu.VMEM((2, _block_pages(cache), *cache.shape[1:]), cache.dtype)
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(Tables._fields),
        grid=(tiled[0],),
        in_specs=[tile, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=tile,
        scratch_shapes=[held, pltpu.SemaphoreType.DMA((2,)), running, running],
    )


class _Running(NamedTuple):
    """The softmax so far, by head and query."""

    peak: jax.Ref
    mass: jax.Ref
    sums: jax.Ref


def _attend_tile(*refs: jax.Ref, group: int, window: int | None, softcap: float | None) -> None:
    count = len(Tables._fields)
    tables = Tables(*refs[:count])
    queries, cache, sums, held, arrived, peak, mass = refs[count:]
    tile = pl.program_id(0)
    tiles = tables.ends.shape[0]
    blocks = Blocks(tables=tables, cache=cache, held=held, arrived=arrived, tiles=tiles)
    blocks.begin(tile)
    running = _Running(peak=peak, mass=mass, sums=sums)
    peak[...] = jnp.full(peak.shape, _LOWEST, peak.dtype)
    mass[...] = jnp.zeros(mass.shape, mass.dtype)
    sums[...] = jnp.zeros(sums.shape, sums.dtype)
    limits = _limits(tables.positions, tile=tile, lanes=tables.positions.shape[0] // tiles, group=group, like=peak)

    @pl.loop(*blocks.of(tile))
    def _(block: Array) -> None:
        buffer = blocks.take(tile, block=block)
        at = block * blocks.length * held.shape[4]
        _attend_block(queries, held, buffer, limits - at, running=running, window=window, softcap=softcap)

    sums[...] = sums[...] / jnp.where(mass[...] > 0, mass[...], 1)


def _limits(positions: jax.Ref, *, tile: Array, lanes: int, group: int, like: jax.Ref) -> Array:
    """Each query's position, one below the other; -1 for those of padding."""
    query = jax.lax.broadcasted_iota(jnp.int32, like.shape[1:], 0)
    limits = jnp.full(query.shape, -1, jnp.int32)
    for lane in range(lanes):
        is_own = (query >= lane * group) & (query < (lane + 1) * group)
        limits = jnp.where(is_own, positions[tile * lanes + lane], limits)
    return limits


def _attend_block(
    queries: jax.Ref,
    held: jax.Ref,
    buffer: Array,
    limits: Array,
    *,
    running: _Running,
    window: int | None,
    softcap: float | None,
) -> None:
    """Adds what each head sees of the block in a buffer. `limits` count from the block's first position."""
    _, block, halves, kv_heads, page_size, width = held.shape
    positions = jax.lax.broadcasted_iota(jnp.int32, (queries.shape[1], block * page_size), 1)
    seen = positions <= limits
    if window is not None:
        seen &= positions > limits - window
    for head in range(kv_heads):
        keys, values = (held[buffer, :, half, head].reshape(-1, width) for half in (0, halves - 1))
        scores = _product(queries[head], keys, over=1)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        scores = jnp.where(seen, scores, _MASKED)
        peak = jnp.maximum(running.peak[head], jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - peak)
        shrink = jnp.exp(running.peak[head] - peak)
        running.peak[head] = peak
        running.mass[head] = running.mass[head] * shrink + jnp.sum(weights, axis=1, keepdims=True)
        added = _product(weights.astype(values.dtype), values, over=0)
        running.sums[head] = running.sums[head] * shrink + added


def _product(left: Array, right: Array, *, over: int) -> Float32[Array, "_ _"]:
    """Exact products, summed in f32. Those of bf16 numbers need no more than one pass."""
    precision = jax.lax.Precision.HIGHEST if right.dtype == jnp.float32 else None
    product: Array = jax.lax.dot_general(
        left, right, (((1,), (over,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
    return product
