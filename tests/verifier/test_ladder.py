"""Window sizes: every window that can be planned has a rung, and it is the cheapest that holds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.lm.attention import PAIR, TILE_ROWS
from deployments.messages.errors import ConfigError
from deployments.verifier.ladder import Ladder, build_ladder, build_rungs, most_tiles
from deployments.verifier.window import Rung


@given(slots=st.integers(1, 40), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_no_window_needs_more_tiles_than_its_rung_has(slots: int, lengths: list[int]) -> None:
    lengths = lengths[:slots]
    rows = sum(lengths)

    assert sum(-(-length // TILE_ROWS) for length in lengths) <= most_tiles(rows, slots=slots)


@given(rows=st.integers(8, 300), slots=st.integers(1, 40))
def test_tiles_come_in_pairs_and_a_window_has_enough_for_all_its_rows(rows: int, slots: int) -> None:
    tiles = most_tiles(rows, slots=slots)

    assert tiles % PAIR == 0
    assert tiles * TILE_ROWS >= rows


def test_the_cheapest_rung_that_holds_a_window_is_taken() -> None:
    ladder = build_ladder((8, 16, 64), slots=8, draft_k=3)

    assert [rung.rows for rung in ladder.rungs] == [8, 16, 64]
    assert ladder.widest.rows == 64
    for rows in range(1, 65):
        rung = ladder.rung_for(rows=rows, tiles=1)
        assert rung.rows == min(size for size in (8, 16, 64) if size >= rows)


def test_draws_cover_every_slot_with_all_its_drafts() -> None:
    assert build_ladder((8, 128), slots=8, draft_k=3).emits == (8, 16, 32)
    assert build_ladder((8, 128), slots=8, draft_k=0).emits == (8,)
    assert build_ladder((8, 16), slots=8, draft_k=7).emits == (8, 16)
    ladder = build_ladder((8, 128), slots=8, draft_k=7)
    assert [ladder.emits_for(count) for count in (1, 8, 9, 33, 64)] == [8, 8, 16, 64, 64]


def test_rungs_can_be_forced_and_left_out() -> None:
    ladder = build_ladder((8, 16, 32), slots=8, draft_k=3)
    first, second, third = ladder.rungs

    assert ladder.only(second) == Ladder(rungs=(second,), emits=ladder.emits)
    assert ladder.without(frozenset({third})).widest == second
    assert ladder.without(frozenset()).rungs == (first, second, third)


@pytest.mark.parametrize("rows", [(), (4,), (8, 8), (16, 8), (8, 18), (0, 8)])
def test_a_ladder_that_does_not_rise_in_tiles_from_eight_is_refused(rows: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must rise from at least 8 rows in multiples of 4"):
        build_rungs(rows, slots=4)


def test_a_window_must_hold_a_row_of_every_slot() -> None:
    with pytest.raises(ConfigError, match="fewer than the 9 slots; widen the ladder"):
        build_ladder((8,), slots=9, draft_k=0)


def test_a_rung_holds_what_fits_both_ways() -> None:
    rung = Rung(rows=16, tiles=6)

    assert rung.holds(rows=16, tiles=6)
    assert not rung.holds(rows=17, tiles=1)
    assert not rung.holds(rows=1, tiles=7)


@pytest.mark.parametrize(
    ("rows", "needed"), [((8, 16, 32), (8,)), ((16, 32), (8, 16)), ((12, 32), (8, 16)), ((64,), (8, 16, 32))]
)
def test_the_smallest_windows_need_draws_for_all_their_rows(rows: tuple[int, ...], needed: tuple[int, ...]) -> None:
    assert build_ladder(rows, slots=8, draft_k=3).needed_emits == needed
