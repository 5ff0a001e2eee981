"""What the gates come to: which drafter runs here, with how many drafts at which load, and why. Pure; knows no stores.

How evidence is read between and beyond what was measured: between two measured numbers of active slots the smaller gain
and the smaller K count, beyond them nothing is known and nothing is drafted. So speculation runs only where it was
faster at the measured numbers on both sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from deployments.messages.gates import ExpectedGain
from serve_app.gating.evidence import ProfitEvidence, ProfitPoint
from serve_app.gating.keys import ProfitKey
from serve_app.gating.records import ProfitRecord, Record, Setting, Verdict
from serve_app.gating.snapshot import Snapshot

LEAST_GAIN = 1.02
"""The smallest median ratio that counts as faster; less is noise."""


class Order(StrEnum):
    """How `auto` chooses among kinds that may run: the first of the candidates, or the fastest."""

    DOCUMENTS = "documents"
    FASTEST = "fastest"


class State(StrEnum):
    """How far a decision is settled: by measurement for or against, not yet, or by an operator."""

    SETTLED = "settled"
    UNKNOWN = "unknown"
    FORCED = "forced"
    DECLINED = "declined"


class Why(StrEnum):
    """Why a kind may run, or may not."""

    PASSED = "passed"
    FORCED_ON = "forced_on"
    PICKED = "picked"
    NOT_APPLICABLE = "not_applicable"
    NOT_GATED = "not_gated"
    INEXACT = "inexact"
    NOT_FASTER = "not_faster"
    DISABLED_BY_OPERATOR = "disabled_by_operator"


_STATES = {
    Why.PASSED: State.SETTLED,
    Why.FORCED_ON: State.FORCED,
    Why.PICKED: State.FORCED,
    Why.NOT_GATED: State.UNKNOWN,
}
# What to say where nothing runs: first what can still be measured.
_TELLING = (Why.NOT_GATED, Why.INEXACT, Why.NOT_FASTER, Why.DISABLED_BY_OPERATOR, Why.NOT_APPLICABLE)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kind of drafter that is considered.

    Attributes:
        key: `None` where it cannot run with this model.
        why_not: why it cannot.
    """

    kind: str
    key: ProfitKey | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the gates say.

    Attributes:
        kind: of the drafter to run; `None` for none.
        gated: whether measurements on this chip allow it, and nothing else.
        sentence: the reason for people, about every candidate where none runs.
        k_by_active_slots: the most drafts of a request with 1, 2, ... active slots; 0 for none.
        stop_above: the most active slots with drafts; `None` where there is no such limit.
        revision: of the gates it follows from.
        expected: what was measured, at each number of active slots where it paid and the kind may run.
    """

    kind: str | None
    state: State
    reason: Why
    sentence: str
    gated: bool
    k_by_active_slots: tuple[int, ...]
    stop_above: int | None
    revision: int
    expected: tuple[ExpectedGain, ...] = ()

    def k_for(self, active: int, /) -> int:
        """The most drafts of a request with so many active slots."""
        return self.k_by_active_slots[active - 1] if 0 < active <= len(self.k_by_active_slots) else 0


@dataclass(frozen=True, kw_only=True)
class _Judged:
    candidate: Candidate
    why: Why
    sentence: str
    limits: tuple[int, ...] = ()
    gain: float = 0.0

    @property
    def may_run(self) -> bool:
        return self.why in (Why.PASSED, Why.FORCED_ON, Why.PICKED)


def decide(
    gates: Snapshot,
    /,
    *,
    candidates: Sequence[Candidate],
    slots: int,
    order: Order = Order.DOCUMENTS,
    least_gain: float = LEAST_GAIN,
) -> Decision:
    """What `speculation: auto` runs.

    What an operator forced on comes first; then what has passed here, in the order asked for.

    Args:
        candidates: in the order of the documents: trained block drafter, MTP, draft model, n-gram.
        slots: of the verifier.
    """
    judged = [_judge(gates, candidate=each, slots=slots, least_gain=least_gain) for each in candidates]
    running = [each for each in judged if each.may_run]
    if not running:
        return _nothing(judged, slots=slots, revision=gates.revision)
    if order is Order.FASTEST:
        running.sort(key=lambda each: -each.gain)
    running.sort(key=lambda each: each.why is not Why.FORCED_ON)
    return _decided(running[0], gates=gates, slots=slots, least_gain=least_gain)


def decide_picked(gates: Snapshot, /, *, candidate: Candidate, slots: int, least_gain: float = LEAST_GAIN) -> Decision:
    """What comes of a kind picked by hand: it runs, gated or not, unless it cannot, is inexact, or was forced off.

    Where it has passed, its evidence limits it; where it has not, nothing does.
    """
    judged = _judge(gates, candidate=candidate, slots=slots, least_gain=least_gain)
    if judged.why in (Why.NOT_APPLICABLE, Why.INEXACT, Why.DISABLED_BY_OPERATOR):
        return _nothing([judged], slots=slots, revision=gates.revision)
    if judged.may_run or candidate.key is None:
        return _decided(judged, gates=gates, slots=slots, least_gain=least_gain)
    picked = replace(
        judged,
        why=Why.PICKED,
        sentence=f"picked by hand; {judged.sentence}",
        limits=_unlimited(candidate.key, slots=slots),
    )
    decision = _decided(picked, gates=gates, slots=slots, least_gain=least_gain)
    return replace(decision, state=_STATES.get(judged.why, State.FORCED), reason=judged.why)


def limits(evidence: ProfitEvidence, /, *, slots: int, k_max: int, least_gain: float = LEAST_GAIN) -> tuple[int, ...]:
    """K for 1, 2, ... `slots` active slots; 0 where speculation was not shown to be faster."""
    return tuple(
        min(evidence_k, k_max) if gain >= least_gain else 0
        for gain, evidence_k in (_at(evidence, active=active) for active in range(1, slots + 1))
    )


def _at(evidence: ProfitEvidence, *, active: int) -> tuple[float, int]:
    """Gain and K at a number of active slots; 0 and 0 beyond what was measured."""
    beside = _beside(evidence, active=active)
    if not beside:
        return 0.0, 0
    return min(point.ratio.median for point in beside), min(point.k for point in beside)


def _beside(evidence: ProfitEvidence, *, active: int) -> list[ProfitPoint]:
    """What was measured next to a number of active slots, on either side; nothing beyond what was measured."""
    below = [point for point in evidence.points if point.active <= active][-1:]
    above = [point for point in evidence.points if point.active >= active][:1]
    return below + above if below and above else []


def _expected(record: ProfitRecord | None, /, *, allowed: Sequence[int], least_gain: float) -> tuple[ExpectedGain, ...]:
    if record is None or not record.has_passed:
        return ()
    slots = len(allowed)
    paying = limits(record.evidence, slots=slots, k_max=record.key.k_max, least_gain=least_gain)
    found = []
    for active in range(1, slots + 1):
        beside = _beside(record.evidence, active=active)
        # A record without this cannot be compared with windows.
        if allowed[active - 1] and paying[active - 1] and all(point.plain_window_ms for point in beside):
            found.append(
                ExpectedGain(
                    active=active,
                    gain=min(point.ratio.median for point in beside),
                    tokens_per_round=min(point.tokens_per_round for point in beside),
                    plain_window_ms=max(point.plain_window_ms for point in beside),
                    window_ms=max(point.window_ms for point in beside),
                )
            )
    return tuple(found)


def _judge(gates: Snapshot, *, candidate: Candidate, slots: int, least_gain: float) -> _Judged:
    def said(why: Why, sentence: str) -> _Judged:
        return _Judged(candidate=candidate, why=why, sentence=f"{candidate.kind}: {sentence}")

    key = candidate.key
    if key is None:
        return said(Why.NOT_APPLICABLE, candidate.why_not or "does not apply to this model")
    forced = gates.forced_for(key)
    if forced is not None and forced.setting is Setting.OFF:
        return said(Why.DISABLED_BY_OPERATOR, str(forced))
    exactness = gates.exactness_for(key.program)
    # Nobody's word makes a reply right that was shown to be wrong.
    if exactness is not None and exactness.verdict is Verdict.FAIL:
        return said(Why.INEXACT, _failure(exactness))
    if forced is not None:
        judged = said(Why.FORCED_ON, f"{forced}; not measured by that")
        return replace(judged, limits=_unlimited(key, slots=slots))
    profit = gates.profit_for(key)
    for record, what in ((exactness, "exactness"), (profit, "profit")):
        if record is None:
            return said(Why.NOT_GATED, f"not gated on this chip: no record of {what} applies{_nearest(gates, key)}")
        if record.verdict is Verdict.DID_NOT_RUN:
            return said(Why.NOT_GATED, f"not gated on this chip: the check of {what} did not run ({_failure(record)})")
    assert profit is not None
    return _judge_profit(profit, said=said, slots=slots, least_gain=least_gain)


def _judge_profit(
    record: ProfitRecord, *, said: Callable[[Why, str], _Judged], slots: int, least_gain: float
) -> _Judged:
    if record.verdict is Verdict.FAIL:
        return said(Why.NOT_FASTER, _failure(record))
    allowed = limits(record.evidence, slots=slots, k_max=record.key.k_max, least_gain=least_gain)
    if not any(allowed):
        return said(Why.NOT_FASTER, f"no measured gain reaches {least_gain:g} at up to {slots} active slots")
    gains = [_at(record.evidence, active=active)[0] if k else 1.0 for active, k in enumerate(allowed, start=1)]
    best = record.evidence.best
    assert best is not None
    judged = said(
        Why.PASSED, f"passed on this chip: {best.ratio.median:.2f} times as fast at {best.active} active slots"
    )
    return replace(judged, limits=allowed, gain=fmean(gains))


def _failure(record: Record) -> str:
    return f"{record.reason.value}: {record.detail}" if record.reason and record.detail else record.verdict_text


def _nearest(gates: Snapshot, key: ProfitKey) -> str:
    found = gates.nearest(key)
    return f"; the nearest does not: {', '.join(found)}" if found else ""


def _unlimited(key: ProfitKey, *, slots: int) -> tuple[int, ...]:
    return (key.k_max,) * slots


def _decided(chosen: _Judged, *, gates: Snapshot, slots: int, least_gain: float) -> Decision:
    drafting = [active for active, k in enumerate(chosen.limits, start=1) if k]
    most = drafting[-1] if drafting else 0
    key = chosen.candidate.key
    profit = None if key is None else gates.profit_for(key)
    return Decision(
        kind=chosen.candidate.kind,
        state=_STATES[chosen.why],
        reason=chosen.why,
        sentence=chosen.sentence,
        gated=chosen.why is Why.PASSED,
        k_by_active_slots=chosen.limits,
        stop_above=None if most == slots else most,
        revision=gates.revision,
        expected=_expected(profit, allowed=chosen.limits, least_gain=least_gain),
    )


def _nothing(judged: Sequence[_Judged], *, slots: int, revision: int) -> Decision:
    told = min(judged, key=lambda each: _TELLING.index(each.why), default=None)
    reason = Why.NOT_APPLICABLE if told is None else told.why
    return Decision(
        kind=None,
        state=_STATES.get(reason, State.DECLINED),
        reason=reason,
        sentence="; ".join(each.sentence for each in judged) or "no drafter is configured",
        gated=False,
        k_by_active_slots=(0,) * slots,
        stop_above=0,
        revision=revision,
    )
