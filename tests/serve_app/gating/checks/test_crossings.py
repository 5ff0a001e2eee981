"""Which numbers of active slots are measured."""

import pytest

from serve_app.gating.checks.crossings import measured_through, next_number


@pytest.mark.parametrize(
    ("gains", "wanted"),
    [
        ({}, None),
        ({1: 1.5}, None),
        ({1: 1.5, 2: 1.3}, None),
        ({1: 1.5, 8: 1.3}, None),
        ({1: 0.9, 8: 0.8}, None),
        ({2: 1.2, 4: 0.9}, 3),
        ({1: 1.5, 2: 1.2, 8: 0.9}, 5),
        ({8: 0.9, 2: 1.2, 5: 0.95}, 3),
        ({8: 0.9, 3: 1.2, 4: 0.95}, None),
        ({1: 0.9, 4: 1.3}, 2),
        ({1: 1.3, 4: 1.019}, 2),
    ],
)
def test_the_next_number_lies_within_the_first_open_crossing(gains: dict[int, float], wanted: int | None) -> None:
    assert next_number(gains, least_gain=1.02) == wanted


@pytest.mark.parametrize("limit", range(1, 33))
def test_wherever_it_stops_to_pay_both_sides_are_measured(limit: int) -> None:
    tried: list[int] = []

    def measure(active: int) -> float:
        tried.append(active)
        return 1.5 if active <= limit else 0.7

    found = measured_through([1, 2, 4, 8, 16, 32], measure=measure, gain=float, least_gain=1.02)
    assert limit in found
    assert limit == 32 or limit + 1 in found
    assert len(tried) == len(set(tried)) <= 6 + 4
    assert list(found) == sorted(found)


def test_what_cannot_be_measured_is_left_out_and_tried_once() -> None:
    tried: list[int] = []

    def measure(active: int) -> float | None:
        tried.append(active)
        return None if active in (4, 6) else 1.5 if active < 4 else 0.7

    found = measured_through([1, 2, 4, 8], measure=measure, gain=float, least_gain=1.02)
    assert found == {1: 1.5, 2: 1.5, 5: 0.7, 3: 1.5, 8: 0.7}
    assert sorted(tried) == [1, 2, 3, 4, 5, 8]
