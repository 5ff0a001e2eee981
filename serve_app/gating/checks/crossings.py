"""Which numbers of active slots to measure. Pure.

Between two measured numbers the gates take the worse of both, so where speculation pays at one and not at the other,
those next to the crossing are measured too. Then "stops at 4, resumes at 3" is what was measured, not what was assumed.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise


def next_number(gains: Mapping[int, float], /, *, least_gain: float) -> int | None:
    """The number to measure next, half-way across the first crossing that is not closed; `None` when all are.

    Args:
        gains: by the number of active slots.
    """
    for below, above in pairwise(sorted(gains)):
        if above - below > 1 and (gains[below] >= least_gain) != (gains[above] >= least_gain):
            return (below + above) // 2
    return None


def measured_through[T](
    numbers: Sequence[int], /, *, measure: Callable[[int], T | None], gain: Callable[[T], float], least_gain: float
) -> dict[int, T]:
    """What `measure` found at all `numbers`, and next to every crossing.

    Args:
        measure: brings `None` where there is nothing to be measured.
    """
    found: dict[int, T] = {}
    tried: set[int] = set()
    waiting = list(numbers)
    while waiting:
        number = waiting.pop(0)
        tried.add(number)
        value = measure(number)
        if value is not None:
            found[number] = value
        if not waiting:
            further = next_number({n: gain(v) for n, v in found.items()}, least_gain=least_gain)
            waiting = [further] if further is not None and further not in tried else []
    return {number: found[number] for number in sorted(found)}
