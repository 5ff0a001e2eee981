"""Paged attention against numpy on ragged windows, and the independence that exactness rests on, bit by bit."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import DTypeLike

from deployments.lm.attention import TILE_ROWS, Tiles, attend, write

PAGE, PAGES, SLOT_PAGES = 16, 40, 6
HEADS, KV_HEADS, WIDTH = 6, 2, 8
# Windows are filled up to this size where a test does not choose another, so that few programs are compiled.
TILES, ROWS = 24, 72


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive rows of one slot: `count` of them from position `start`, in the slot's pages."""

    start: int
    count: int
    pages: tuple[int, ...]


# Within a page, across a border, ending at one, a single row at a page's first and last place, more than a tile.
RAGGED = (
    Part(start=0, count=5, pages=(7, 3)),
    Part(start=13, count=7, pages=(21, 2, 35)),
    Part(start=47, count=1, pages=(9, 30, 1)),
    Part(start=48, count=1, pages=(4, 17, 12, 5)),
    Part(start=28, count=4, pages=(39, 6)),
    Part(start=60, count=9, pages=(11, 10, 38, 8, 20)),
)


def window(parts: tuple[Part, ...], *, tiles: int = TILES, total: int = ROWS) -> Tiles:
    """The tiles of `parts` in order, then ones that hold nothing; laid out here, apart from the packing."""
    rows: list[list[int]] = []
    positions: list[list[int]] = []
    pages: list[list[int]] = []
    lanes: list[int] = []
    first = 0
    for part in parts:
        for begin in range(0, part.count, TILE_ROWS):
            size = min(TILE_ROWS, part.count - begin)
            lanes += [len(rows) * TILE_ROWS + lane for lane in range(size)]
            rows.append([first + begin + lane for lane in range(size)] + [0] * (TILE_ROWS - size))
            positions.append([part.start + begin + lane for lane in range(size)] + [-1] * (TILE_ROWS - size))
            pages.append([*part.pages, *[0] * (SLOT_PAGES - len(part.pages))])
        first += part.count
    spare = tiles - len(rows)
    lanes += [0] * (total - first)
    rows += [[0] * TILE_ROWS] * spare
    positions += [[-1] * TILE_ROWS] * spare
    pages += [[0] * SLOT_PAGES] * spare
    return Tiles(
        rows=jnp.asarray(rows, jnp.int32),
        positions=jnp.asarray(positions, jnp.int32),
        pages=jnp.asarray(pages, jnp.int32),
        lane_of_row=jnp.asarray(lanes, jnp.int32),
    )


def garbage(seed: int) -> np.ndarray:
    """A cache full of finite nonsense."""
    return np.random.default_rng(seed).normal(size=(PAGES, 2, KV_HEADS, PAGE, WIDTH)).astype(np.float32) * 100.0


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is asked, and the keys and values of each part's whole prefix."""

    queries: tuple[np.ndarray, ...]
    keys: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]


def contents(parts: tuple[Part, ...], *, seed: int) -> Contents:
    def normal(part: Part, *shape: int) -> np.ndarray:
        # Keyed by the part, so that a part has the same content wherever it stands.
        rng = np.random.default_rng((seed, *part.pages, part.start, *shape))
        return rng.normal(size=shape).astype(np.float32)

    return Contents(
        queries=tuple(3.0 * normal(part, part.count, HEADS, WIDTH) for part in parts),
        keys=tuple(normal(part, part.start + part.count, KV_HEADS, WIDTH) for part in parts),
        values=tuple(normal(part, part.start + part.count, KV_HEADS, WIDTH, 1)[..., 0] for part in parts),
    )


def filled(parts: tuple[Part, ...], *, held: Contents, beside: int, dtype: DTypeLike) -> jax.Array:
    """The cache as windows would have left it, on top of garbage."""
    cache = garbage(beside)
    for part, keys, values in zip(parts, held.keys, held.values, strict=True):
        places = np.arange(part.start + part.count)
        pages = np.asarray(part.pages)[places // PAGE]
        cache[pages, 0, :, places % PAGE], cache[pages, 1, :, places % PAGE] = keys, values
    return jnp.asarray(cache, dtype)


_attend = jax.jit(lambda queries, cache, tiles: attend(queries, cache=cache, tiles=tiles))


def split(out: jax.Array, *, parts: tuple[Part, ...]) -> list[np.ndarray]:
    return np.split(np.asarray(out), np.cumsum([part.count for part in parts]))[:-1]


def padded(queries: list[np.ndarray], *, total: int = ROWS) -> jax.Array:
    rows = np.concatenate(queries)
    return jnp.asarray(np.concatenate([rows, np.ones((total - len(rows), HEADS, WIDTH), np.float32)]))


def attended(
    parts: tuple[Part, ...],
    *,
    dtype: DTypeLike,
    seed: int = 0,
    beside: int = 1,
    tiles: int = TILES,
    total: int = ROWS,
) -> list[np.ndarray]:
    """What each part's rows see."""
    held = contents(parts, seed=seed)
    cache = filled(parts, held=held, beside=beside, dtype=dtype)
    table = window(parts, tiles=tiles, total=total)
    return split(_attend(padded(list(held.queries), total=total), cache, table), parts=parts)


def expected(part: Part, *, seed: int) -> np.ndarray:
    """Softmax attention, written down once more."""
    held = contents((part,), seed=seed)
    queries, keys, values = (x[0].astype(np.float64) for x in (held.queries, held.keys, held.values))
    out = np.zeros((part.count, HEADS, WIDTH))
    for row in range(part.count):
        seen = part.start + row + 1
        for head in range(HEADS):
            group = head * KV_HEADS // HEADS
            scores = keys[:seen, group] @ queries[row, head] / np.sqrt(WIDTH)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[:seen, group] / weights.sum()
    return out.reshape(part.count, -1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-5), (jnp.bfloat16, 8e-2)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_see_their_slot_up_to_themselves(dtype: DTypeLike, tolerance: float, seed: int) -> None:
    for part, seen in zip(RAGGED, attended(RAGGED, dtype=dtype, seed=seed), strict=True):
        np.testing.assert_allclose(seen, expected(part, seed=seed), atol=tolerance, rtol=0)


def test_random_ragged_windows() -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        free = list(rng.permutation(np.arange(1, PAGES)))
        parts = []
        for _ in range(int(rng.integers(2, 7))):
            start, count = int(rng.integers(0, 70)), int(rng.integers(1, 14))
            needed = -(-(start + count) // PAGE)
            parts.append(Part(start=start, count=count, pages=tuple(int(free.pop()) for _ in range(needed))))
        for part, seen in zip(parts, attended(tuple(parts), dtype=jnp.float32), strict=True):
            np.testing.assert_allclose(seen, expected(part, seed=0), atol=2e-5, rtol=0)


def test_the_reference_notices_a_wrong_page() -> None:
    """The comparison above can fail: one page of one slot exchanged."""
    wrong = replace(RAGGED[5], pages=(11, 10, 8, 38, 20))
    held = contents(RAGGED, seed=0)
    cache = filled(RAGGED, held=held, beside=1, dtype=jnp.float32)
    seen = split(_attend(padded(list(held.queries)), cache, window((*RAGGED[:5], wrong))), parts=RAGGED)

    assert np.abs(seen[5] - expected(RAGGED[5], seed=0)).max() > 0.1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
class TestBits:
    """Every part against itself in other company."""

    def same(self, left: list[np.ndarray], right: list[np.ndarray]) -> None:
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))

    def test_more_tiles_change_nothing(self, dtype: DTypeLike) -> None:
        alone = attended(RAGGED, dtype=dtype, tiles=10, total=27)
        for tiles, total in ((14, 27), (12, 32), (16, 128), (38, 64)):
            self.same(attended(RAGGED, dtype=dtype, tiles=tiles, total=total), alone)
        smallest = attended(RAGGED[:1], dtype=dtype, tiles=2, total=8)
        self.same(smallest, alone[:1])

    def test_more_pages_than_a_row_needs_change_nothing(self, dtype: DTypeLike) -> None:
        """A pair runs over the pages of its longer tile."""
        for part in RAGGED[:2]:
            beside_longest = attended((part, RAGGED[-1]), dtype=dtype)
            self.same(beside_longest[:1], attended((part,), dtype=dtype))

    def test_unrelated_pages_change_nothing(self, dtype: DTypeLike) -> None:
        for beside in (2, 3):
            self.same(attended(RAGGED, dtype=dtype, beside=beside), attended(RAGGED, dtype=dtype, beside=1))

    def test_neighbours_change_nothing(self, dtype: DTypeLike) -> None:
        """Each part with one neighbour only, before it and after it."""
        together = attended(RAGGED, dtype=dtype)
        for number, part in enumerate(RAGGED):
            other = RAGGED[(number + 1) % len(RAGGED)]
            self.same([attended((part, other), dtype=dtype)[0]], [together[number]])
            self.same([attended((other, part), dtype=dtype)[1]], [together[number]])

    def test_a_row_has_the_same_bits_in_any_lane(self, dtype: DTypeLike) -> None:
        """A block of rows cut into windows in every way: what is verified together was once decoded alone."""
        whole = Part(start=26, count=9, pages=(11, 10, 38))
        other = RAGGED[1]
        seen = attended((whole, other), dtype=dtype)[0]
        held = contents((whole, other), seed=0)
        cache = filled((whole, other), held=held, beside=1, dtype=dtype)
        for size in (1, 2, 3, 5, 8):
            for begin in range(whole.count - size + 1):
                part = replace(whole, start=whole.start + begin, count=size)
                queries = padded([held.queries[0][begin : begin + size], held.queries[1]])
                out = np.asarray(_attend(queries, cache, window((part, other))))
                self.same([out[:size]], [seen[begin : begin + size]])


def test_rows_are_written_where_they_belong_and_nowhere_else() -> None:
    before = garbage(4)
    pages, offsets = np.asarray([5, 5, 9, 0], np.int32), np.asarray([0, 15, 3, 0], np.int32)
    rng = np.random.default_rng(0)
    keys, values = (rng.normal(size=(4, KV_HEADS, WIDTH)).astype(np.float32) for _ in range(2))

    after = np.asarray(
        write(
            jnp.asarray(before),
            keys=jnp.asarray(keys),
            values=jnp.asarray(values),
            pages=jnp.asarray(pages),
            offsets=jnp.asarray(offsets),
        )
    )

    wanted = before.copy()
    for row, (page, offset) in enumerate(zip(pages, offsets, strict=True)):
        wanted[page, 0, :, offset], wanted[page, 1, :, offset] = keys[row], values[row]
    np.testing.assert_array_equal(after, wanted)
