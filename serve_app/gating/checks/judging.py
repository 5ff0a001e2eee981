"""From evidence to records: verdict, reason and a sentence. Pure; measures nothing."""

from deployments.verifier.ladder import SMALLEST_ROWS
from serve_app.gating.evidence import ExactnessEvidence, ProfitEvidence
from serve_app.gating.keys import ExactnessKey, ProfitKey
from serve_app.gating.policy import LEAST_GAIN
from serve_app.gating.records import ExactnessRecord, Measured, ProfitRecord, Reason, Verdict


def judge_exactness(
    evidence: ExactnessEvidence, /, *, key: ExactnessKey, measured: Measured, description: str
) -> ExactnessRecord:
    """The record of a proof that ran to its end."""
    verdict, reason, detail = _exactness_verdict(evidence, key=key)
    return ExactnessRecord(
        key=key,
        verdict=verdict,
        reason=reason,
        detail=f"{detail}; {description}" if detail else description,
        evidence=evidence,
        measured=measured,
    )


def judge_profit(
    evidence: ProfitEvidence,
    /,
    *,
    key: ProfitKey,
    measured: Measured,
    description: str,
    least_gain: float = LEAST_GAIN,
) -> ProfitRecord:
    """The record of a measurement that ran to its end."""
    verdict, reason, detail = _profit_verdict(evidence, least_gain=least_gain)
    return ProfitRecord(
        key=key,
        verdict=verdict,
        reason=reason,
        detail=f"{detail}; {description}",
        evidence=evidence,
        measured=measured,
    )


def failed_profit(error: Exception, /, *, key: ProfitKey, measured: Measured) -> ProfitRecord:
    """The record of a measurement that ended with an error."""
    return ProfitRecord(
        key=key, verdict=Verdict.DID_NOT_RUN, reason=Reason.FAILED, detail=_sentence(error), measured=measured
    )


def failed_exactness(error: Exception, /, *, key: ExactnessKey, measured: Measured) -> ExactnessRecord:
    """The record of a proof that ended with an error."""
    return ExactnessRecord(
        key=key, verdict=Verdict.DID_NOT_RUN, reason=Reason.FAILED, detail=_sentence(error), measured=measured
    )


def _exactness_verdict(evidence: ExactnessEvidence, *, key: ExactnessKey) -> tuple[Verdict, Reason | None, str]:
    if evidence.mismatches:
        where = next(name for name, proof in evidence.drafters.items() if proof.mismatches)
        with_drafts = "without drafts, in a batch" if where == "off" else f"with {where} drafts"
        return Verdict.FAIL, Reason.INEXACT, f"{with_drafts}: {evidence.first}"
    widest = max(evidence.rungs, default=0)
    # Without them some slots would wait for their row, or no draft would have one.
    needed = max(key.slots, SMALLEST_ROWS)
    if widest < needed:
        told = "; ".join(f"{rows} rows: {reason}" for rows, reason in evidence.refused.items())
        return Verdict.FAIL, Reason.RUNG_REFUSED, f"no window of {needed} rows is exact ({told})"
    if not evidence.tokens:
        return Verdict.DID_NOT_RUN, Reason.NOTHING_COMPARED, "no reply has a token"
    if not evidence.drafts:
        return Verdict.DID_NOT_RUN, Reason.NO_DRAFTS, "no draft was verified"
    return Verdict.PASS, None, ""


def _profit_verdict(evidence: ProfitEvidence, *, least_gain: float) -> tuple[Verdict, Reason | None, str]:
    best = evidence.best
    if best is None or not any(point.rounds for point in evidence.points):
        return Verdict.DID_NOT_RUN, Reason.NO_DRAFTS, "no window had drafts"
    slots = "slot" if best.active == 1 else "slots"
    found = f"{best.ratio.median:.2f} times as fast at {best.active} active {slots} with K {best.k}"
    # Even where less is asked for, a pass says faster.
    if best.ratio.median < least_gain or best.ratio.median <= 1.0:
        return Verdict.FAIL, Reason.NOT_FASTER, f"at best {found}"
    return Verdict.PASS, None, found


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
