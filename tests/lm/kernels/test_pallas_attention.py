"""The Pallas attention, interpreted: against numpy and the plain path on random windows, and bit by bit."""

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from deployments.lm.attention import TILE_ROWS, Tiles, attend
from deployments.lm.kernels.attention import pallas
from deployments.lm.kernels.choice import Kernels
from tests.lm import slots
from tests.lm.slots import PARTS, Attend, Layout, Part, Shape, attended, attending, expected, same_bits

WIDE = Layout(rows=64, tiles=22)


def shape(*, heads: int, kv_heads: int, width: int, page_size: int, is_f32: bool = False, halves: int = 2) -> Shape:
    dtype = jnp.float32 if is_f32 else jnp.bfloat16
    return Shape(heads=heads, kv_heads=kv_heads, width=width, page_size=page_size, dtype=dtype, halves=halves)


SMALL = shape(heads=3, kv_heads=1, width=64, page_size=16, is_f32=True)
PAIRED = shape(heads=6, kv_heads=2, width=64, page_size=16, halves=1)
# Every head width with every number of heads that keys have, in both types of cache. Groups and page sizes take turns.
GRID = tuple(
    shape(
        heads=kv_heads * (1 + (3 * i + 5 * j + 4 * is_f32) % 8),
        kv_heads=kv_heads,
        width=width,
        page_size=(16, 32, 64, 112, 128)[(i + 2 * j + is_f32) % 5],
        is_f32=is_f32,
        halves=1 if width == 64 and kv_heads != 2 else 2,
    )
    for i, kv_heads in enumerate((1, 2, 3, 4, 8))
    for j, width in enumerate((64, 128, 256))
    for is_f32 in (False, True)
)


@pytest.fixture
def blocks_of_32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages of 16 at a time, so that a tile takes up to seven blocks."""
    monkeypatch.setattr(pallas, "_BLOCK_POSITIONS", 32)


def interpreted(*, scale: float | None = None, window: int | None = None, softcap: float | None = None) -> Attend:
    return attending(kernels=Kernels.PALLAS_INTERPRETED, scale=scale, window=window, softcap=softcap)


def check(
    parts: Sequence[Part],
    seen: Sequence[np.ndarray],
    *,
    shape: Shape,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Queries and weights are rounded to bf16 with such a cache; another position's key or value is off by about 1."""
    is_f32 = shape.dtype == jnp.float32
    for part, rows in zip(parts, seen, strict=True):
        off = np.abs(rows - expected(part, shape=shape, scale=scale, window=window, softcap=softcap))
        assert off.max() < (2e-5 if is_f32 else 6e-2)
        assert off.mean() < (2e-6 if is_f32 else 5e-3)


def check_plain(seen: Sequence[np.ndarray], plain: Sequence[np.ndarray], *, shape: Shape) -> None:
    """The same queries, keys and values; weights are rounded against the largest score of other blocks."""
    for one, other in zip(seen, plain, strict=True):
        assert np.abs(one - other).max() < (1e-5 if shape.dtype == jnp.float32 else 1.5e-2)


def random_parts(rng: np.random.Generator) -> tuple[Part, ...]:
    """Up to nine rows of each of some slots; one slot stands there twice, with rows of its own."""
    chosen = rng.permutation(len(PARTS))[: rng.integers(2, len(PARTS))]
    counts = rng.integers(1, 10, len(chosen) + 1)
    return tuple(
        Part(slot=int(slot), start=int(rng.integers(0, slots.LONGEST - count + 1)), count=int(count))
        for slot, count in zip([*chosen, chosen[0]], counts, strict=True)
    )


@pytest.mark.parametrize("shape", [SMALL, PAIRED], ids=str)
def test_random_windows(shape: Shape) -> None:
    rng = np.random.default_rng(11)
    how, plain = interpreted(), attending()
    for number in range(6):
        parts, layout = random_parts(rng), Layout(rows=64, tiles=22, placement=number)
        seen = attended(parts, how, shape=shape, layout=layout)
        check(parts, seen, shape=shape)
        check_plain(seen, attended(parts, plain, shape=shape, layout=layout), shape=shape)


@pytest.mark.usefixtures("blocks_of_32")
@pytest.mark.parametrize(
    ("window", "softcap", "scale"),
    [(None, 4.0, 0.3), (1, None, None), pytest.param(5, None, None, marks=pytest.mark.slow), (100, 2.0, None)],
)
def test_windows_soft_caps_and_scales(window: int | None, softcap: float | None, scale: float | None) -> None:
    kind: dict[str, Any] = {"window": window, "softcap": softcap, "scale": scale}
    seen = attended(PARTS, interpreted(**kind), shape=SMALL)
    check(PARTS, seen, shape=SMALL, **kind)
    check_plain(seen, attended(PARTS, attending(**kind), shape=SMALL), shape=SMALL)


def test_the_reference_notices_a_window_and_a_cap_that_are_not_there() -> None:
    seen = attended(PARTS, interpreted(window=5), shape=SMALL)
    for wrong in ({"window": 4}, {"window": 6}, {"window": 5, "softcap": 4.0}):
        with pytest.raises(AssertionError):
            check(PARTS, seen, shape=SMALL, **wrong)


@pytest.mark.usefixtures("blocks_of_32")
@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 60])
def test_a_row_has_the_same_bits_everywhere(window: int | None) -> None:
    slots.check_bits(interpreted(window=window), shape=PAIRED)


@pytest.mark.usefixtures("blocks_of_32")
def test_a_row_has_the_same_bits_in_any_order_of_tiles_and_beside_any_table() -> None:
    how = interpreted(window=60)
    together = attended(PARTS, how, shape=PAIRED)

    def reordered(queries: jnp.ndarray, cache: jnp.ndarray, tiles: Tiles) -> jnp.ndarray:
        # Tiles of padding between the others, too.
        order = np.random.default_rng(2).permutation(len(tiles.rows))
        tile, lane = np.divmod(np.asarray(tiles.lane_of_row), tiles.rows.shape[1])
        moved = np.argsort(order)[tile] * tiles.rows.shape[1] + lane
        rows, positions, pages = (table[order] for table in (tiles.rows, tiles.positions, tiles.pages))
        lanes = jnp.asarray(moved, jnp.int32)
        return how(queries, cache, Tiles(rows=rows, positions=positions, pages=pages, lane_of_row=lanes))

    def lengthened(queries: jnp.ndarray, cache: jnp.ndarray, tiles: Tiles) -> jnp.ndarray:
        return how(queries, cache, tiles._replace(pages=jnp.pad(tiles.pages, ((0, 0), (0, 37)))))

    same_bits(attended(PARTS, reordered, shape=PAIRED), together)
    same_bits(attended(PARTS, lengthened, shape=PAIRED), together)


@pytest.mark.usefixtures("blocks_of_32")
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        (PAIRED, None),
        (SMALL, 20),
        pytest.param(PAIRED, 20, marks=pytest.mark.slow),
        pytest.param(SMALL, None, marks=pytest.mark.slow),
        pytest.param(PAIRED, 3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_row_has_the_same_bits_first_in_a_pair_second_and_alone(shape: Shape, window: int | None) -> None:
    """Four tiles of a slot are two pairs, and three a pair and one alone; pages and blocks end between and in them."""
    how = interpreted(window=window)
    for first in (28, 86, 150):
        run = Part(slot=1, start=first, count=16)
        (rows,) = attended((run, PARTS[2]), how, shape=shape)[:1]
        for begin in range(0, 16, 4):
            (alone,) = attended((Part(slot=1, start=first + begin, count=4),), how, shape=shape)
            same_bits([alone], [rows[begin : begin + 4]])
        for begin, count in ((4, 12), (8, 8), (12, 4), (4, 8), (6, 7)):
            (later,) = attended((Part(slot=1, start=first + begin, count=count),), how, shape=shape)
            same_bits([later], [rows[begin : begin + count]])


@pytest.mark.usefixtures("blocks_of_32")
@pytest.mark.parametrize("window", [None, 20])
def test_tiles_of_one_table_are_pairs_in_any_order_of_positions(window: int | None) -> None:
    """As of two slots with the same pages; the second tile of a pair sees less or more than the first, or as much."""
    how = interpreted(window=window)
    parts = tuple(Part(slot=2, start=start, count=count) for start, count in ((172, 4), (161, 2), (163, 3), (172, 4)))
    together = attended(parts, how, shape=PAIRED)
    check(parts, together, shape=PAIRED, window=window)
    for part, rows in zip(parts, together, strict=True):
        same_bits(attended((part,), how, shape=PAIRED), [rows])
    same_bits(attended(parts[::-1], how, shape=PAIRED)[::-1], together)


@pytest.mark.slow
@pytest.mark.usefixtures("blocks_of_32")
def test_a_window_longer_than_the_context_changes_no_bit() -> None:
    same_bits(attended(PARTS, interpreted(window=1000), shape=SMALL), attended(PARTS, interpreted(), shape=SMALL))


@pytest.mark.usefixtures("blocks_of_32")
def test_pages_before_every_window_are_not_read() -> None:
    slots.check_unread(interpreted(window=20), shape=SMALL, window=20)


def test_what_is_no_number_reaches_no_row_that_does_not_see_it() -> None:
    slots.check_poison(interpreted(), shape=SMALL)


@pytest.mark.usefixtures("blocks_of_32")
@pytest.mark.parametrize("dma", ["on_wait", pytest.param("eager", marks=pytest.mark.slow)])
def test_on_a_simulated_chip_copies_do_not_race(dma: Literal["on_wait", "eager"]) -> None:
    """Memory that nobody wrote holds no numbers there, and a copy is made when it is waited for, or at once."""
    how = attending(kernels=Kernels.PALLAS, window=100)
    simulated = pltpu.InterpretParams(detect_races=True, dma_execution_mode=dma, uninitialized_memory="nan")
    with pltpu.force_tpu_interpret_mode(simulated):
        seen = attended(PARTS, how, shape=PAIRED)
    same_bits(seen, attended(PARTS, interpreted(window=100), shape=PAIRED))


def test_a_cache_it_cannot_read_is_left_to_the_plain_path() -> None:
    odd = Shape(heads=4, kv_heads=2, width=80, page_size=16)
    same_bits(attended(PARTS, interpreted(), shape=odd), attended(PARTS, attending(), shape=odd))


def test_memory_traffic_is_counted() -> None:
    """Of a layer of 8 key heads of 128 in bf16: a page of 64 positions is 256 KiB; queries are read twice."""
    cache = jnp.zeros((3, 2, 8, 64, 128), jnp.bfloat16)
    tile = 8 * 16 * 128 * (2 * 2 + 4)
    assert pallas.hbm_bytes(0, cache=cache, tiles=16, queries=16) == 16 * tile
    assert pallas.hbm_bytes(100, cache=cache, tiles=16, queries=16) == 16 * tile + 100 * 256 * 1024
    assert pallas.vmem_bytes(cache=cache, queries=16) < 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize("shape", GRID, ids=str)
def test_every_width_and_number_of_heads(shape: Shape) -> None:
    window, softcap = (None, 100)[shape.kv_heads % 2], (None, 3.0)[shape.width == 256]
    kind: dict[str, Any] = {"window": window, "softcap": softcap}
    seen = attended(PARTS, interpreted(**kind), shape=shape)
    check(PARTS, seen, shape=shape, **kind)
    check_plain(seen, attended(PARTS, attending(**kind), shape=shape), shape=shape)


@pytest.mark.parametrize("width", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_heads_alone_have_the_bits_they_have_among_others(width: int) -> None:
    """On several devices each has some of the heads; where the softmax is cut must not depend on how many."""
    kv_heads, group, page_size, length = 8, 2, 64, 500
    rng = np.random.default_rng(width)
    cache = jnp.asarray(rng.normal(size=(9, 2 if width == 128 else 1, kv_heads, page_size, 128)), jnp.bfloat16)
    queries = jnp.asarray(rng.normal(size=(TILE_ROWS, kv_heads * group, width)), jnp.float32)
    tiles = Tiles(
        rows=jnp.asarray([range(TILE_ROWS), [0] * TILE_ROWS]),
        positions=jnp.asarray([range(length, length + TILE_ROWS), [-1] * TILE_ROWS]),
        pages=jnp.asarray([range(1, 9), [0] * 8]),
        lane_of_row=jnp.arange(TILE_ROWS),
    )

    def seen(heads: slice) -> np.ndarray:
        asked = queries.reshape(TILE_ROWS, kv_heads, group, width)[:, heads].reshape(TILE_ROWS, -1, width)
        found = attend(asked, cache=cache[:, :, heads], tiles=tiles, kernels=Kernels.PALLAS_INTERPRETED)
        return np.asarray(found).reshape(TILE_ROWS, -1, group, width)

    whole = seen(slice(None))
    for count in (1, 2, 4):
        np.testing.assert_array_equal(seen(slice(2, 2 + count)), whole[:, 2 : 2 + count])
