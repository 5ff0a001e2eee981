"""One drafter as a verifier sees it: its link, its ledger, and how punctual it has been. Pure but for the link."""

from dataclasses import dataclass

from deployments.verifier.link import DrafterLink
from deployments.verifier.link_ledger import Ledger

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 2.0
_PER_LATE = 4
_GOOD_STREAK = 16


class Punctuality:
    """Decides when a drafter that is late is left alone, and for how long.

    A late round costs four points, a punctual one gives one back; `late_limit` late rounds in a row are too many, and
    so is more than one in five, because a drafter that is late every other round would cost its deadline as often.
    One that comes back is on probation: its first late round is too many.
    """

    def __init__(self, *, late_limit: int) -> None:
        self._limit = _PER_LATE * late_limit
        self._points = 0
        self._streak = 0
        self._pause_s = FIRST_PAUSE_S

    @property
    def is_tardy(self) -> bool:
        return self._points >= self._limit

    def late(self) -> None:
        """A round whose deadline passed without all of its answers."""
        self._points += _PER_LATE
        self._streak = 0

    def on_time(self) -> None:
        """A round with all of its answers in time, whatever they were worth."""
        self._points = max(0, self._points - 1)
        self._streak += 1
        if self._streak >= _GOOD_STREAK:
            self._pause_s = FIRST_PAUSE_S

    def next_pause_s(self) -> float:
        """How long to leave it alone now; the next pause is twice as long until it has been good for a while."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s

    def restored(self) -> None:
        """It answers again, and is on probation."""
        self._points = self._limit - _PER_LATE


@dataclass(slots=True, eq=False, kw_only=True)
class Peer:
    """Owned by one thread at a time: the engine's while it is live, the keeper's while it is not."""

    link: DrafterLink
    ledger: Ledger
    punctuality: Punctuality
