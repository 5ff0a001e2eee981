"""Rows of several slots laid out over tiles and pages, and what softmax attention gives them by numpy in float64.

A slot's keys, values and queries depend on its number alone: it can stand in any window, tile and page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from deployments.lm.attention import TILE_ROWS, Tiles, attend, write
from deployments.lm.kernels.choice import Kernels

LONGEST = 224


@dataclass(frozen=True, kw_only=True)
class Shape:
    heads: int
    kv_heads: int
    width: int
    page_size: int
    dtype: DTypeLike = jnp.float32
    halves: int = 2

    def __str__(self) -> str:
        sizes = f"{self.heads}x{self.kv_heads}x{self.width}-pages-of-{self.page_size}"
        return f"{sizes}-{jnp.dtype(self.dtype).name}" + ("-side-by-side" if self.halves == 1 else "")

    @property
    def slot_pages(self) -> int:
        return -(-LONGEST // self.page_size)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive rows of one slot: `count` of them from position `start`."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything stands.

    Attributes:
        rows, tiles: the size of the window.
        placement: which pages the slots have got.
        beside: what lies where nobody has written: keys that are no numbers, and large values.
    """

    rows: int = 32
    tiles: int = 14
    placement: int = 0
    beside: int = 0


# Across borders of pages, steps of 64 and windows; one row and more than a tile; short beside long.
PARTS = (
    Part(slot=0, start=0, count=5),
    Part(slot=1, start=14, count=9),
    Part(slot=2, start=160, count=6),
    Part(slot=3, start=62, count=4),
    Part(slot=4, start=99, count=3),
    Part(slot=5, start=223, count=1),
)

type Attend = Callable[[jax.Array, jax.Array, Tiles], jax.Array]


def attending(
    *,
    kernels: Kernels = Kernels.XLA,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Attend:
    return jax.jit(
        lambda queries, cache, tiles: attend(
            queries, cache=cache, tiles=tiles, kernels=kernels, scale=scale, window=window, softcap=softcap
        )
    )


@cache
def queries_of(part: Part, *, shape: Shape) -> np.ndarray:
    drawn = np.random.default_rng((part.slot, 1)).normal(size=(LONGEST, shape.heads, shape.width))
    return (2.0 * drawn[part.start : part.start + part.count]).astype(np.float32)


@cache
def kept_of(slot: int, *, shape: Shape) -> np.ndarray:
    """The slot's keys and values, `[positions, 2, kv_heads, width]`, as its cache rounds them."""
    drawn = np.random.default_rng((slot, 2)).normal(size=(LONGEST, 2, shape.kv_heads, shape.width))
    return np.asarray(jnp.asarray(drawn, shape.dtype))


def pages_of(slot: int, *, shape: Shape, layout: Layout) -> np.ndarray:
    pool = 1 + np.random.default_rng(layout.placement).permutation(shape.slot_pages * len(PARTS))
    return pool[slot * shape.slot_pages : (slot + 1) * shape.slot_pages]


@cache
def garbage_of(seed: int, *, shape: Shape) -> np.ndarray:
    """A whole cache of it."""
    size = (shape.slot_pages * len(PARTS) + 1, 2, shape.kv_heads, shape.page_size, shape.width)
    drawn = np.asarray(jnp.asarray(np.random.default_rng((seed, 3)).normal(size=size) * 1e6, shape.dtype)).copy()
    drawn[:, 0] = np.nan
    return drawn


def cache_of(parts: Sequence[Part], *, shape: Shape, layout: Layout) -> np.ndarray:
    """Holds each part's prefix and own positions."""
    cache = garbage_of(layout.beside, shape=shape).copy()
    for part in parts:
        places = np.arange(part.start + part.count)
        pages = pages_of(part.slot, shape=shape, layout=layout)[places // shape.page_size]
        cache[pages, :, :, places % shape.page_size] = kept_of(part.slot, shape=shape)[places]
    return cache


def tiles_of(parts: Sequence[Part], *, shape: Shape, layout: Layout) -> Tiles:
    """In order, then tiles that hold nothing. Rows of padding see what a lane of padding sees."""
    rows = np.zeros((layout.tiles, TILE_ROWS), np.int32)
    positions = np.full((layout.tiles, TILE_ROWS), -1, np.int32)
    pages = np.zeros((layout.tiles, shape.slot_pages), np.int32)
    lanes = np.zeros(layout.rows, np.int32)
    tile = row = 0
    for part in parts:
        held = -(-(part.start + part.count) // shape.page_size)
        for begin in range(0, part.count, TILE_ROWS):
            size = min(TILE_ROWS, part.count - begin)
            rows[tile, :size] = row + np.arange(size)
            positions[tile, :size] = part.start + begin + np.arange(size)
            pages[tile, :held] = pages_of(part.slot, shape=shape, layout=layout)[:held]
            lanes[row : row + size] = tile * TILE_ROWS + np.arange(size)
            tile, row = tile + 1, row + size
    lanes[row:] = np.argmax(positions.ravel() < 0)
    return Tiles(*(jnp.asarray(table) for table in (rows, positions, pages, lanes)))


def attended(
    parts: Sequence[Part],
    how: Attend,
    *,
    shape: Shape,
    layout: Layout | None = None,
    held: np.ndarray | None = None,
) -> list[np.ndarray]:
    """What each part's rows see."""
    layout = layout or Layout()
    asked = [queries_of(part, shape=shape) for part in parts]
    spare = layout.rows - sum(part.count for part in parts)
    queries = np.concatenate([*asked, np.ones((spare, shape.heads, shape.width), np.float32)])
    held = cache_of(parts, shape=shape, layout=layout) if held is None else held
    if shape.halves == 1:
        held = np.concatenate([held[:, :1], held[:, 1:]], axis=-1)
    seen = np.asarray(how(jnp.asarray(queries), jnp.asarray(held), tiles_of(parts, shape=shape, layout=layout)))
    ends = list(accumulate(part.count for part in parts))
    assert not seen[ends[-1] :].any(), "rows of padding see something"
    return np.split(seen, ends)[:-1]


def expected(
    part: Part,
    *,
    shape: Shape,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    """Softmax attention, written down once more."""
    queries = queries_of(part, shape=shape).astype(np.float64)
    keys, values = kept_of(part.slot, shape=shape).astype(np.float64).swapaxes(0, 1)
    out = np.zeros((part.count, shape.heads, shape.width))
    for row in range(part.count):
        end = part.start + row + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        for head in range(shape.heads):
            own = head * shape.kv_heads // shape.heads
            scores = keys[seen, own] @ queries[row, head] * (shape.width**-0.5 if scale is None else scale)
            scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[seen, own] / weights.sum()
    return out.reshape(part.count, -1)


def same_bits(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def check_bits(how: Attend, *, shape: Shape) -> None:
    """Every row against itself in other windows, company, tiles and pages, beside other garbage."""
    together = attended(PARTS, how, shape=shape)
    for layout in (Layout(rows=64, tiles=22), Layout(placement=1), Layout(beside=1)):
        same_bits(attended(PARTS, how, shape=shape, layout=layout), together)
    same_bits(attended(PARTS[::-1], how, shape=shape)[::-1], together)
    for part, seen in zip(PARTS, together, strict=True):
        same_bits(attended((part,), how, shape=shape, layout=Layout(rows=16, tiles=4)), [seen])
    for size in (1, 2, 3):
        for part, seen in zip(PARTS, together, strict=True):
            cut = [
                Part(slot=part.slot, start=part.start + begin, count=min(size, part.count - begin))
                for begin in range(0, part.count, size)
            ]
            same_bits([np.concatenate(attended(cut, how, shape=shape))], [seen])


def check_unread(how: Attend, *, shape: Shape, window: int) -> None:
    """Values that are no numbers lie on every page that ends before the first window of a tile of the part."""
    layout = Layout()
    for part in PARTS[2:]:
        parts = (part, PARTS[1])
        held = cache_of(parts, shape=shape, layout=layout)
        before = attended(parts, how, shape=shape, held=held)
        unseen = max(0, part.start - window + 1) // shape.page_size
        assert unseen, "the test has no such pages"
        changed = held.copy()
        changed[pages_of(part.slot, shape=shape, layout=layout)[:unseen]] = np.nan
        same_bits(attended(parts, how, shape=shape, held=changed), before)

        # The next page is seen, if only by some rows.
        changed[pages_of(part.slot, shape=shape, layout=layout)[unseen]] = 1.0
        (spoilt, _) = attended(parts, how, shape=shape, held=changed)
        assert (spoilt != before[0]).any()


def check_poison(how: Attend, *, shape: Shape) -> None:
    """A row whose key and value are no numbers: the rows before it in its tile, and who gets its page next."""
    layout = Layout()
    part, other = Part(slot=1, start=30, count=4), Part(slot=4, start=3, count=2)
    clean = cache_of((part, other), shape=shape, layout=layout)
    page = pages_of(part.slot, shape=shape, layout=layout)[33 // shape.page_size]
    poisoned = poison(clean, page=page, offset=33 % shape.page_size)
    wanted = attended((part, other), how, shape=shape, held=clean)
    seen = attended((part, other), how, shape=shape, held=poisoned)
    same_bits([seen[0][:3], seen[1]], [wanted[0][:3], wanted[1]])
    assert (seen[0][3] != wanted[0][3]).any()

    # The page goes to the other slot, which has not come as far as the poison.
    taken = pages_of(other.slot, shape=shape, layout=layout)[0]
    same_bits(
        attended((other,), how, shape=shape, held=poison(clean, page=taken, offset=5)),
        [wanted[1]],
    )


def poison(held: np.ndarray, *, page: int, offset: int) -> np.ndarray:
    nothing = jnp.full((1, held.shape[2], held.shape[4]), jnp.nan)
    pages, offsets = jnp.asarray([page]), jnp.asarray([offset])
    return np.asarray(write(jnp.asarray(held), keys=nothing, values=nothing, pages=pages, offsets=offsets))
