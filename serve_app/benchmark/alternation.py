"""Runs that take turns, and what their values come to. Knows neither what runs nor what the values mean."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

type Arm[T] = Callable[[int], T]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often to measure.

    Attributes:
        rounds: runs of each arm that count.
        seconds: no further round begins that would end after so long.
        least: rounds that count and are made even so.
        warm_ups: rounds before them that do not count.
    """

    rounds: int
    seconds: float = math.inf
    least: int = 2
    warm_ups: int = 1


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The median of some runs, the smallest and the largest of them, and how many there were."""

    median: float
    least: float
    most: float
    runs: int


def alternate[K, T](
    arms: Mapping[K, Arm[T]], *, effort: Effort, clock: Callable[[], float] = time.perf_counter
) -> dict[K, tuple[T, ...]]:
    """Runs A, B, A, B, ... and returns what each arm brought, in order of rounds.

    Args:
        arms: told the number of the round, so that all arms of a round can do the same work.
    """
    brought: dict[K, list[T]] = {name: [] for name in arms}
    started = clock()
    for number in range(effort.warm_ups + effort.rounds):
        began = clock()
        for name, arm in arms.items():
            value = arm(number)
            if number >= effort.warm_ups:
                brought[name].append(value)
        now = clock()
        if number + 1 >= effort.warm_ups + effort.least and (now - started) + (now - began) > effort.seconds:
            break
    return {name: tuple(values) for name, values in brought.items()}


def spread(values: Sequence[float], /) -> Spread:
    """The spread of at least one value."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values), runs=len(values))


def quotients(upper: Sequence[float], *, lower: Sequence[float]) -> tuple[float, ...]:
    """Round by round, one arm's value over the other's: noise that outlasts a round cancels."""
    return tuple(a / b for a, b in zip(upper, lower, strict=True))


def timed(act: Callable[[], object], /) -> float:
    """Seconds that `act` takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started
