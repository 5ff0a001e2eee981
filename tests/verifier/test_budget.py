"""How many rows prompts get, and which prompt gets them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.verifier.budget import prompt_rows, share

RUNGS = (8, 16, 32, 64, 128)


@pytest.mark.parametrize(
    ("decoding", "most", "rows"),
    [
        (1, 32, 31),  # up to the next rung, not one row into the one after it
        (8, 32, 24),
        (16, 32, 16),
        (17, 32, 32),
        (32, 32, 32),
        (8, 256, 120),  # more than the widest window
        (128, 32, 0),
        (1, 1, 1),
    ],
)
def test_prompts_fill_a_window_up_to_a_rung(decoding: int, most: int, rows: int) -> None:
    assert prompt_rows(decoding=decoding, most=most, rungs=RUNGS) == rows


@given(decoding=st.integers(1, 128), most=st.integers(1, 200))
def test_prompts_get_at_most_their_budget_and_at_least_half_of_it_where_it_fits(decoding: int, most: int) -> None:
    rows = prompt_rows(decoding=decoding, most=most, rungs=RUNGS)

    assert 0 <= rows <= most
    assert decoding + rows <= 128
    assert rows >= most // 2 or decoding + rows == 128


@pytest.mark.parametrize(
    ("needs", "rows", "shares"),
    [
        ([], 32, []),
        ([100], 32, [32]),
        ([5], 32, [5]),
        ([8000, 20], 32, [16, 16]),  # a short prompt does not wait for a long one
        ([8000, 4], 32, [28, 4]),
        ([8000, 500, 20], 32, [16, 0, 16]),
        ([100, 100, 100], 32, [16, 16, 0]),  # one after the other
        ([3, 100, 2], 32, [3, 27, 2]),
        ([9, 9], 1, [1, 0]),
    ],
)
def test_half_for_who_came_first_and_half_for_who_is_done_first(needs: list[int], rows: int, shares: list[int]) -> None:
    assert share(needs, rows=rows) == shares


@given(needs=st.lists(st.integers(1, 500), min_size=1, max_size=9), rows=st.integers(1, 128))
def test_no_row_is_wasted_and_the_first_always_goes_on(needs: list[int], rows: int) -> None:
    shares = share(needs, rows=rows)

    assert sum(shares) == min(rows, sum(needs))
    assert all(0 <= given <= need for given, need in zip(shares, needs, strict=True))
    assert shares[0] >= min(needs[0], rows, max(rows // 2, 1))
