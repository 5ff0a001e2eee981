"""The native attention against numpy in float64, and the independence of its rows, bit by bit."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.attention import TILE_ROWS
from deployments.lm.kernels.attention import attend, serves

pytestmark = pytest.mark.usefixtures("native")

PAGES, SLOT_PAGES = 48, 12


@dataclass(frozen=True, kw_only=True)
class Shape:
    heads: int
    kv_heads: int
    width: int
    page_size: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive rows of one slot, from position `start`; `pages` from a shuffled pool."""

    start: int
    count: int
    first_page: int


SHAPES = (
    Shape(heads=9, kv_heads=3, width=64, page_size=16),
    Shape(heads=4, kv_heads=2, width=16, page_size=16),
    Shape(heads=8, kv_heads=1, width=32, page_size=32),
    Shape(heads=3, kv_heads=3, width=48, page_size=64),
    Shape(heads=4, kv_heads=2, width=128, page_size=16),
    Shape(heads=14, kv_heads=2, width=80, page_size=48),
)
# At the borders of a vector, a step of 64 and a page; one row and more than a tile.
PARTS = (
    Part(start=0, count=1, first_page=0),
    Part(start=0, count=9, first_page=12),
    Part(start=62, count=5, first_page=24),
    Part(start=127, count=1, first_page=36),
)

_attend = jax.jit(
    lambda queries, cache, rows, positions, pages: attend(
        queries, cache=cache, rows=rows, positions=positions, pages=pages
    )
)


def cached(shape: Shape, *, seed: int) -> np.ndarray:
    size = (PAGES + 1, 2, shape.kv_heads, shape.page_size, shape.width)
    return np.asarray(jnp.asarray(np.random.default_rng((7, seed)).normal(size=size), jnp.bfloat16))


def pages_of(part: Part) -> np.ndarray:
    pool = 1 + np.random.default_rng(3).permutation(PAGES)
    return pool[part.first_page : part.first_page + SLOT_PAGES].astype(np.int32)


def asked(part: Part, *, shape: Shape) -> np.ndarray:
    rng = np.random.default_rng((part.start, part.count, part.first_page))
    return (3.0 * rng.normal(size=(part.count, shape.heads, shape.width))).astype(np.float32)


def attended(parts: tuple[Part, ...], *, shape: Shape, cache: np.ndarray, spare: int = 1) -> list[np.ndarray]:
    """What the rows of each part see; with `spare` tiles of padding and as many rows."""
    rows: list[list[int]] = []
    positions: list[list[int]] = []
    pages: list[np.ndarray] = []
    first = 0
    for part in parts:
        for begin in range(0, part.count, TILE_ROWS):
            size = min(TILE_ROWS, part.count - begin)
            rows.append([first + begin + lane for lane in range(size)] + [0] * (TILE_ROWS - size))
            positions.append([part.start + begin + lane for lane in range(size)] + [-1] * (TILE_ROWS - size))
            pages.append(pages_of(part))
        first += part.count
    rows += [[0] * TILE_ROWS] * spare
    positions += [[-1] * TILE_ROWS] * spare
    pages += [np.zeros(SLOT_PAGES, np.int32)] * spare
    queries = np.concatenate([asked(part, shape=shape) for part in parts])
    queries = np.concatenate([queries, np.ones((spare, *queries.shape[1:]), np.float32)])
    seen = np.asarray(
        _attend(
            jnp.asarray(queries),
            jnp.asarray(cache),
            jnp.asarray(rows, jnp.int32),
            jnp.asarray(positions, jnp.int32),
            jnp.asarray(np.stack(pages)),
        )
    )
    assert not seen[first:].any()
    return np.split(seen, np.cumsum([part.count for part in parts]))[:-1]


def expected(part: Part, *, shape: Shape, cache: np.ndarray) -> np.ndarray:
    places = np.arange(part.start + part.count)
    held = cache[pages_of(part)[places // shape.page_size], :, :, places % shape.page_size].astype(np.float64)
    keys, values = held[:, 0], held[:, 1]
    queries = asked(part, shape=shape).astype(np.float64)
    group = shape.heads // shape.kv_heads
    out = np.zeros((part.count, shape.heads, shape.width))
    for row in range(part.count):
        seen = part.start + row + 1
        for head in range(shape.heads):
            scores = keys[:seen, head // group] @ queries[row, head] * shape.width**-0.5
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[:seen, head // group] / weights.sum()
    return out.reshape(part.count, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_see_their_slot_up_to_themselves(shape: Shape) -> None:
    cache = cached(shape, seed=0)
    for part, seen in zip(PARTS, attended(PARTS, shape=shape, cache=cache), strict=True):
        wanted = expected(part, shape=shape, cache=cache)
        # Queries and weights are rounded to bf16; a key or value of another position is off by about one.
        np.testing.assert_allclose(seen, wanted, atol=4e-2)
        assert np.abs(seen - wanted).mean() < 4e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_in_any_company_and_any_tile(shape: Shape) -> None:
    cache = cached(shape, seed=1)
    together = attended(PARTS, shape=shape, cache=cache)
    for part, seen in zip(PARTS, together, strict=True):
        (alone,) = attended((part,), shape=shape, cache=cache, spare=3)
        np.testing.assert_array_equal(alone.view(np.int32), seen.view(np.int32))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_positions_past_a_row_change_nothing(shape: Shape) -> None:
    cache = cached(shape, seed=2)
    part = Part(start=5, count=2, first_page=0)
    (before,) = attended((part,), shape=shape, cache=cache)
    page = pages_of(part)[0]
    changed = cache.copy()
    changed[page, :, :, 7:] = np.nan
    other_pages = [number for number in range(PAGES + 1) if number != page]
    changed[other_pages] = np.nan
    (after,) = attended((part,), shape=shape, cache=changed)
    np.testing.assert_array_equal(before.view(np.int32), after.view(np.int32))

    changed[page, :, :, 6:] = 1e4
    (other,) = attended((part,), shape=shape, cache=changed)
    np.testing.assert_array_equal(before[0].view(np.int32), other[0].view(np.int32))
    assert (before[1] != other[1]).all()


def test_which_caches_are_served() -> None:
    assert serves(jnp.zeros((2, 2, 1, 16, 64), jnp.bfloat16))
    assert not serves(jnp.zeros((2, 2, 1, 16, 64), jnp.float32))
    assert not serves(jnp.zeros((2, 2, 1, 16, 8), jnp.bfloat16))
    assert not serves(jnp.zeros((2, 2, 1, 24, 64), jnp.bfloat16))
    assert not serves(jnp.zeros((2, 1, 1, 16, 128), jnp.bfloat16))
