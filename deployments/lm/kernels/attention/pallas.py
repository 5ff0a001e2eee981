"""Attention to the paged cache on TPUs, by a Pallas kernel that also runs, interpreted, on processors.

`lm.attention` is its specification: every tile is the same arithmetic over the pages its rows see (running softmax,
Milakov and Gimelshein, 2018), whatever the window holds beside it. There is no other case for single rows.

One step of the grid is one tile. The cache stays in HBM as it is, and blocks of consecutive pages are fetched into two
buffers in turn: a page with the keys and values of all heads in one copy, and only pages that some row of the tile
sees. While the last block of a tile is worked on, the first one of the next tile is on its way. Blocks are counted
from the slot's first position, so which positions meet in one product does not depend on the tile.

Consecutive tiles of one page table are pairs, and read it once: at the step of the first, each block is worked on for
one tile and then for the other, each by itself, by the same instructions as a tile alone, and only where it sees any of
the block. The second tile's result waits in fast memory for its own step. So a row cannot tell whether its tile is
first, second or alone.

A window moves `hbm_bytes`. Fast memory holds two blocks of 128 KiB a head (or of one page, where that is more) and a
few tiles of queries and of results; see `vmem_bytes`. Scalar memory holds the page tables. Knows no networks, no slots
and no chip.
"""

from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Float32, Int

from deployments.lm.kernels.attention.blocks import Blocks
from deployments.lm.kernels.attention.steps import PAIR, Tables, tables_of

# Queries of a head are padded to this many, with which vectors of either cache type are full.
_ROWS = 16
_VECTOR = 128
# Of a block of pages: bytes of each head, and positions, at most.
_HEAD_BYTES, _BLOCK_POSITIONS = 1 << 17, 512
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
    tables = tables_of(positions, pages=pages, firsts=firsts, ends=ends, block=_block_pages(cache))
    seen: Array = call(*tables, padded, padded, cache)
    return seen[:, :, :asked, -head_dim:]


def kept_in_hbm(cache: Array, /) -> Array:
    """The cache as it is. A compiler with room in VMEM would else bring a whole layer there to write a few rows, and
    carry it back."""
    kept: Array = pltpu.with_memory_space_constraint(cache, pltpu.HBM)
    return kept


def hbm_bytes(pages_read: int, /, *, cache: Array | jax.ShapeDtypeStruct, tiles: int, queries: int) -> int:
    """What the kernel moves between HBM and VMEM in one window, which XLA's cost analysis cannot see.

    Args:
        pages_read: summed over pairs and tiles that are alone: what both tiles of a pair see counts once.
        tiles: all of them: the queries, twice, and results of padding travel as well.
        queries: of a tile that share a key: its lanes times the heads that share one.
    """
    each = _queries_bytes(cache, queries=queries) * PAIR + _sums_bytes(cache, queries=queries)
    return pages_read * _page_bytes(cache) + tiles * each


def vmem_bytes(*, cache: Array | jax.ShapeDtypeStruct, queries: int) -> int:
    """What the kernel holds in VMEM beside what it is computing."""
    padded = _padded(queries)
    # What comes and goes with each step lies there twice; a column takes whole vectors.
    asked = 3 * PAIR * _queries_bytes(cache, queries=queries)
    sums = (2 + PAIR) * _sums_bytes(cache, queries=queries)
    columns = PAIR * (2 * cache.shape[2] + 1) * padded * _VECTOR * 4
    return 2 * _block_pages(cache) * _page_bytes(cache) + asked + sums + columns


def _page_bytes(cache: Array | jax.ShapeDtypeStruct) -> int:
    return prod(cache.shape[1:]) * cache.dtype.itemsize


def _queries_bytes(cache: Array | jax.ShapeDtypeStruct, *, queries: int) -> int:
    """Of one tile."""
    _, _, kv_heads, _, width = cache.shape
    return kv_heads * _padded(queries) * width * cache.dtype.itemsize


def _sums_bytes(cache: Array | jax.ShapeDtypeStruct, *, queries: int) -> int:
    """Of one tile."""
    _, _, kv_heads, _, width = cache.shape
    return kv_heads * _padded(queries) * width * 4


def _padded(queries: int) -> int:
    return -(-queries // _ROWS) * _ROWS


def _block_pages(cache: Array | jax.ShapeDtypeStruct) -> int:
    """Pages that are fetched and worked on together; the same for every window over such a cache, and for each device's
    heads of it: where the softmax is cut must not depend on how many devices share them.

    Many where they are small: a copy takes a while however short it is.
    """
    _, halves, _, page_size, width = cache.shape
    positions = _HEAD_BYTES // (halves * width * cache.dtype.itemsize)
    return max(1, min(positions, _BLOCK_POSITIONS) // page_size)


def _grid_spec(tiled: tuple[int, ...], *, cache: Array) -> pltpu.PrefetchScalarGridSpec:
    last = tiled[0] - 1
    tile = pl.BlockSpec((None, *tiled[1:]), lambda tile, *_: (tile, 0, 0, 0))
    after = pl.BlockSpec((None, *tiled[1:]), lambda tile, *_: (jnp.minimum(tile + 1, last), 0, 0, 0))
    column = pltpu.VMEM((PAIR, *tiled[1:3], 1), jnp.float32)
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(Tables._fields),
        grid=(tiled[0],),
        in_specs=[tile, after, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=tile,
        scratch_shapes=[
            pltpu.VMEM((2, _block_pages(cache), *cache.shape[1:]), cache.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.VMEM((PAIR, *tiled[1:]), cache.dtype),
            pltpu.VMEM((PAIR, tiled[2], 1), jnp.int32),
            column,
            column,
            pltpu.VMEM((PAIR, *tiled[1:]), jnp.float32),
        ],
    )


class _Pair(NamedTuple):
    """Two tiles at work, or one and an unused place.

    Attributes:
        queries: by head.
        limits: each query's position, one below the other; -1 for those of padding.
        peak, mass, sums: the softmax so far, by head and query.
    """

    queries: jax.Ref
    limits: jax.Ref
    peak: jax.Ref
    mass: jax.Ref
    sums: jax.Ref

    def at(self, place: Array, /) -> "_Pair":
        """One of the two."""
        return _Pair._make(ref.at[place] for ref in self)


def _attend_tile(*refs: jax.Ref, group: int, window: int | None, softcap: float | None) -> None:
    count = len(Tables._fields)
    tables = Tables(*refs[:count])
    own, after, cache, out, held, arrived = refs[count : count + 6]
    pair = _Pair(*refs[count + 6 :])
    tile = pl.program_id(0)
    blocks = Blocks(tables=tables, cache=cache, held=held, arrived=arrived, tiles=tables.ends.shape[0])
    blocks.begin(tile)
    place = tables.follows[tile]

    @pl.when(place == 0)
    def _() -> None:
        _begin(pair, queries=(own, after), tables=tables, tile=tile, group=group)

    @pl.loop(*blocks.of(tile))
    def _(block: Array) -> None:
        buffer = blocks.take(tile, block=block)
        at = block * blocks.length * held.shape[4]

        @pl.loop(*blocks.seeing(tile, block=block))
        def _(place: Array) -> None:
            _attend_block(pair.at(place), held=held, buffer=buffer, at=at, window=window, softcap=softcap)

    # The second tile of a pair was worked on at the step before, which left it where it is.
    mass = pair.mass[place]
    out[...] = pair.sums[place] / jnp.where(mass > 0, mass, 1)


def _begin(pair: _Pair, *, queries: tuple[jax.Ref, jax.Ref], tables: Tables, tile: Array, group: int) -> None:
    tiles = tables.ends.shape[0]
    pair.peak[...] = jnp.full(pair.peak.shape, _LOWEST, pair.peak.dtype)
    pair.mass[...] = jnp.zeros(pair.mass.shape, pair.mass.dtype)
    pair.sums[...] = jnp.zeros(pair.sums.shape, pair.sums.dtype)
    for place in range(PAIR):
        pair.queries[place] = queries[place][...]
        pair.limits[place] = _limits(
            tables.positions,
            tile=jnp.minimum(tile + place, tiles - 1),
            lanes=tables.positions.shape[0] // tiles,
            group=group,
            shape=pair.limits.shape[1:],
        )


def _limits(positions: Array | jax.Ref, *, tile: Array, lanes: int, group: int, shape: tuple[int, ...]) -> Array:
    query = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    limits = jnp.full(shape, -1, jnp.int32)
    for lane in range(lanes):
        is_own = (query >= lane * group) & (query < (lane + 1) * group)
        limits = jnp.where(is_own, positions[tile * lanes + lane], limits)
    return limits


def _attend_block(
    one: _Pair, /, *, held: jax.Ref, buffer: Array, at: Array, window: int | None, softcap: float | None
) -> None:
    """Adds what each head of one tile sees of the block in a buffer, whose first position is `at`."""
    _, block, halves, kv_heads, page_size, width = held.shape
    limits = one.limits[...] - at
    positions = jax.lax.broadcasted_iota(jnp.int32, (limits.shape[0], block * page_size), 1)
    seen = positions <= limits
    if window is not None:
        seen &= positions > limits - window
    for head in range(kv_heads):
        keys, values = (held[buffer, :, half, head].reshape(-1, width) for half in (0, halves - 1))
        scores = _product(one.queries[head], keys, over=1)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        scores = jnp.where(seen, scores, _MASKED)
        peak = jnp.maximum(one.peak[head], jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - peak)
        shrink = jnp.exp(one.peak[head] - peak)
        one.peak[head] = peak
        one.mass[head] = one.mass[head] * shrink + jnp.sum(weights, axis=1, keepdims=True)
        added = _product(weights.astype(values.dtype), values, over=0)
        one.sums[head] = one.sums[head] * shrink + added


def _product(left: Array, right: Array, *, over: int) -> Float32[Array, "_ _"]:
    """Exact products, summed in f32. Those of bf16 numbers need no more than one pass."""
    precision = jax.lax.Precision.HIGHEST if right.dtype == jnp.float32 else None
    product: Array = jax.lax.dot_general(
        left, right, (((1,), (over,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
    return product
