"""Runs that take turns, and what becomes of their values."""

from collections.abc import Callable

import pytest

from serve_app.benchmark.alternation import Effort, Spread, alternate, quotients, spread

TWICE = Effort(rounds=2)


def test_arms_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[tuple[str, int]] = []

    def arm(name: str) -> Callable[[int], int]:
        def run(number: int) -> int:
            calls.append((name, number))
            return number

        return run

    assert alternate({"a": arm("a"), "b": arm("b")}, effort=TWICE) == {"a": (1, 2), "b": (1, 2)}
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    ("effort", "counted"),
    [
        (Effort(rounds=9, seconds=100), 9),
        (Effort(rounds=9, seconds=10), 4),  # the sixth round would end at 12
        (Effort(rounds=9, seconds=1, least=3), 3),
        (Effort(rounds=9, seconds=10, warm_ups=0), 5),
    ],
)
def test_no_round_begins_that_would_end_too_late(effort: Effort, counted: int) -> None:
    now = 0.0

    def takes_two_seconds(_: int) -> float:
        nonlocal now
        now += 2.0
        return now

    assert len(alternate({"a": takes_two_seconds}, effort=effort, clock=lambda: now)["a"]) == counted


def test_a_spread_is_a_median_and_its_ends() -> None:
    assert spread([5.0, 1.0, 2.0]) == Spread(median=2.0, least=1.0, most=5.0, runs=3)
    assert spread([4.0, 1.0]) == Spread(median=2.5, least=1.0, most=4.0, runs=2)


def test_noise_that_outlasts_a_round_cancels() -> None:
    slowly, quickly = (10.0, 20.0), (5.0, 10.0)
    assert quotients(slowly, lower=quickly) == (2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        quotients(slowly, lower=(1.0,))
