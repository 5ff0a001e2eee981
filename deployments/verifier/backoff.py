"""When a request stops guessing for a while because its guesses keep missing. Pure; knows no drafter and no clock.

Rules: a window in which no request has a guess runs without speculation. In a window that speculates, every request
that may guess is counted, with or without a guess of its own. After 4 counted windows in a row that keep none of its
guesses a request waits for 16 windows of any sort; each further 4 double the wait, up to 256; a kept guess sets it
back to 16, unless the request is waiting. Time is counted in windows: one window is one device call and one pass.
"""

from dataclasses import dataclass, replace

MISSES = 4
FIRST_WAIT = 16
LONGEST_WAIT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """The state of one request; `after_window` gives the next one.

    Attributes:
        misses: counted windows in a row with nothing kept, since the last kept guess or wait.
        waiting: windows still to sit out.
        next_wait: how long the next wait will be.
    """

    misses: int = 0
    waiting: int = 0
    next_wait: int = FIRST_WAIT

    @property
    def may_guess(self) -> bool:
        return self.waiting == 0

    def after_window(self, *, speculated: bool, kept: int) -> "BackOff":
        """The state after one window.

        Args:
            speculated: some request in the window had a guess.
            kept: how many of this request's guesses the target kept.
        """
        if self.waiting:
            return replace(self, waiting=self.waiting - 1)
        if not speculated:
            return self
        if kept:
            return BackOff()
        if self.misses + 1 < MISSES:
            return replace(self, misses=self.misses + 1)
        return BackOff(waiting=self.next_wait, next_wait=min(2 * self.next_wait, LONGEST_WAIT))
