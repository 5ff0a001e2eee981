"""Requests without a slot, in the order in which they get one. Pure; knows no pages and no clock.

Preempted requests come first, since their streams have begun. The others are ordered by arrival, with every step of
`priority` worth a fixed time of waiting: nobody is overtaken by those who come later than that, so nobody starves.
"""

from bisect import insort
from collections.abc import Iterator

from deployments.verifier.slots import Slot


class WaitingLine:
    """Whoever comes next comes first."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def add(self, slot: Slot, /) -> None:
        insort(self._slots, slot, key=_place)

    def first(self) -> Slot:
        """Who comes next; the line must not be empty."""
        return self._slots[0]

    def take_first(self) -> Slot:
        """The same, who is then in the line no more."""
        return self._slots.pop(0)

    def remove(self, request_id: str, /) -> bool:
        """Forgets a request; says whether it was there."""
        for place, slot in enumerate(self._slots):
            if slot.request.request_id == request_id:
                del self._slots[place]
                return True
        return False

    def take_expired(self, *, now: float) -> tuple[Slot, ...]:
        """Those whose deadline has passed before they ever had a slot, who are then in the line no more."""
        expired = tuple(slot for slot in self._slots if slot.is_expired(now=now))
        if expired:
            self._slots = [slot for slot in self._slots if not slot.is_expired(now=now)]
        return expired

    def clear(self) -> None:
        self._slots.clear()


def _place(slot: Slot) -> tuple[bool, float, int]:
    return (not slot.preemptions, *slot.seniority)
