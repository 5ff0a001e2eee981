"""Whether drafts still gain here what the record promises: windows that serve, looked at span by span. Pure; no clock.

A turn is from the tokens of one window to those of the next: the host's work, the wait for drafts, the device's time.
Turns follow each other without a gap or an overlap, so their seconds may be added. Only those count in which all active
slots decode, as many as the record has an answer for. With so many slots active

    gain = (tokens a slot got per turn) x (a turn without speculation) / (a turn),

where a turn without speculation is a window in which nobody had drafts, and what the host takes beside the wait for
drafts. Both are taken from the same minutes, so that neither a neighbour on the machine nor longer texts look like a
loss. It is the ratio of `outrider gate run`, without its pairs of runs: nobody is served plainly to measure.

Where too few windows without drafts were seen, the record's stand in, longer by as much as windows with drafts are
longer than recorded. A chip that is slower at everything has lost no gain; that only its windows with drafts are slower
is not noticed then.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deployments.messages.gates import ExpectedGain, GainFigures, LiveGain
from deployments.messages.generation import FinishReason
from deployments.messages.ports import GateWatch
from deployments.verifier.delivery import Landed

LOST_BELOW = 0.95
"""Speculation costs more than noise. Requests whose guesses keep missing back off: what is left of their cost is some
hundredths, which is no loss to speak of."""

_IN_A_ROW = 2
"""One span may be a neighbour on the machine, or one client's odd text."""

_ENOUGH = 16
"""Windows without drafts whose mean is better than the record's."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GainSpan:
    """How much is looked at before anything is said; both must be reached.

    Attributes:
        windows: with drafts. Tokens per window spread by about 1, so the mean of 500 is right to a twentieth.
        seconds: of turns that count. A minute outlasts what else happens on a machine now and then.
    """

    windows: int = 500
    seconds: float = 60.0


@dataclass(slots=True, kw_only=True)
class _Number:
    """Turns with one number of active slots.

    Attributes:
        plain, plain_s: windows in which nobody had drafts, and their seconds on the device.
        drafted, drafted_s: those in which somebody had.
        joined, joined_s: windows without drafts inside a call of several, whose own seconds nobody knows.
        hosted: turns in which the host worked: of a call of several windows the first one alone.
        seconds: of whole turns.
        waited_s: of those, for drafts.
        tokens: of all slots.
        rounds, kept: drafts that a slot had in a window, and single ones of them that were accepted.
    """

    recorded: ExpectedGain
    plain: int = 0
    plain_s: float = 0.0
    drafted: int = 0
    drafted_s: float = 0.0
    joined: int = 0
    joined_s: float = 0.0
    hosted: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    tokens: int = 0
    rounds: int = 0
    kept: int = 0

    @property
    def turns(self) -> int:
        return self.plain + self.drafted + self.joined

    @property
    def has_seen_plain(self) -> bool:
        return self.plain >= _ENOUGH

    @property
    def window_s(self) -> float:
        """A window with drafts; the record's where there was none."""
        return self.drafted_s / self.drafted if self.drafted else self.recorded.window_ms / 1e3

    @property
    def plain_window_s(self) -> float:
        if self.has_seen_plain:
            return self.plain_s / self.plain
        longer = 1e3 * self.window_s / self.recorded.window_ms if self.recorded.window_ms else 1.0
        return self.recorded.plain_window_ms / 1e3 * max(longer, 1.0)

    @property
    def plainly_s(self) -> float:
        """How long the same tokens would have taken without speculation."""
        # Without speculation there are no calls, and the host works for every window.
        host_s = (self.seconds - self.waited_s - self.plain_s - self.drafted_s - self.joined_s) / max(self.hosted, 1)
        return self.tokens / self.recorded.active * (self.plain_window_s + host_s)

    def add(self, landed: Landed, /, *, seconds: float) -> bool:
        """One turn of so many seconds, if all its slots decoded; whether it had drafts."""
        tokens = rounds = kept = 0
        # One pass over plain attributes: this runs in every window.
        for step in landed.steps:
            emits = step.span.emits
            # Prompts have rows that emit nothing.
            if len(step.span.tokens) != emits:
                return False
            # The token that ends a reply is not in it, and takes a window without drafts all the same.
            tokens += len(step.fresh) + (step.finish is FinishReason.STOP)
            if emits > 1:
                rounds += 1
                kept += len(step.drawn.tokens) - 1
        self.tokens += tokens
        self.rounds += rounds
        self.kept += kept
        self.seconds += seconds
        self.waited_s += landed.flight.waited
        flight = landed.flight
        window_s = landed.at - flight.launched_at
        self.hosted += flight.window is not None or flight.follows != flight.launched_at
        if rounds:
            self.drafted += 1
            self.drafted_s += window_s
        elif flight.window is None:
            self.joined += 1
            self.joined_s += window_s
        else:
            self.plain += 1
            self.plain_s += window_s
        return rounds > 0


class LiveGains:
    """Adds windows up and says at the end of each span what drafts were worth in it.

    The gain is gone for good when it was below `LOST_BELOW` in two spans in a row, and back when it was not in two.
    Another record begins anew.

    Args:
        gates: has the record's figures, and is told.
    """

    def __init__(self, gates: GateWatch, *, span: GainSpan) -> None:
        self._gates = gates
        self._span = span
        self._expected: tuple[ExpectedGain, ...] = ()
        self._is_lost = False
        self._against = 0
        self._begin()

    def landed(self, landed: Landed, /) -> None:
        """One window, in the order in which they ran. Called while the device works; never raises."""
        expected = self._gates.rule.expected
        if expected is not self._expected:
            self._follow(expected)
            return
        flight, slots = landed.flight, len(landed.steps)
        number = self._numbers.get(slots)
        # What a prompt brought, or a request that is gone, is no step.
        if number is None or flight.follows is None or slots != len(flight.plan.spans):
            return
        self._drafted += number.add(landed, seconds=landed.at - flight.follows)
        if self._drafted >= self._span.windows and self._seconds >= self._span.seconds:
            self._judge()

    @property
    def _seconds(self) -> float:
        return sum(each.seconds for each in self._numbers.values())

    def _follow(self, expected: tuple[ExpectedGain, ...]) -> None:
        """The rule is another one; where it promises the same, nothing that was seen is lost."""
        is_same = expected == self._expected
        self._expected = expected
        if not is_same:
            self._is_lost, self._against = False, 0
            self._begin()

    def _begin(self) -> None:
        self._numbers = {each.active: _Number(recorded=each) for each in self._expected}
        self._drafted = 0

    def _judge(self) -> None:
        numbers = [each for each in self._numbers.values() if each.turns]
        gain = sum(each.plainly_s for each in numbers) / self._seconds
        is_against = (gain < LOST_BELOW) != self._is_lost
        self._against = self._against + 1 if is_against else 0
        if self._against == _IN_A_ROW:
            self._is_lost, self._against = not self._is_lost, 0
        found = _found(numbers, gain=gain, is_lost=self._is_lost)
        self._begin()
        try:
            self._gates.gain_found(found)
        except Exception:
            # Whoever only looks on must not end replies.
            _log.exception("the gates could not be told what speculation gains")


def _found(numbers: list[_Number], *, gain: float, is_lost: bool) -> LiveGain:
    turns, rounds = sum(each.turns for each in numbers), sum(each.rounds for each in numbers)

    def by_time(figure: Callable[[_Number], float]) -> float:
        return _mean((figure(each), each.seconds) for each in numbers)

    return LiveGain(
        windows=turns,
        drafted_windows=sum(each.drafted for each in numbers),
        seconds=sum(each.seconds for each in numbers),
        plain_windows="seen" if all(each.has_seen_plain for each in numbers) else "recorded",
        wait_ms=1e3 * sum(each.waited_s for each in numbers) / turns,
        found=GainFigures(
            gain=gain,
            tokens_per_round=1 + sum(each.kept for each in numbers) / rounds,
            plain_window_ms=1e3 * by_time(lambda each: each.plain_window_s),
            window_ms=1e3 * by_time(lambda each: each.window_s),
        ),
        recorded=GainFigures(
            gain=by_time(lambda each: each.recorded.gain),
            tokens_per_round=by_time(lambda each: each.recorded.tokens_per_round),
            plain_window_ms=by_time(lambda each: each.recorded.plain_window_ms),
            window_ms=by_time(lambda each: each.recorded.window_ms),
        ),
        is_lost=is_lost,
    )


def _mean(weighed: Iterable[tuple[float, float]]) -> float:
    pairs = list(weighed)
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
