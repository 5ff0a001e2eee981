"""Verdicts follow from evidence."""

import msgspec
import pytest

from serve_app.gating.checks.judging import failed_profit, judge_exactness, judge_profit
from serve_app.gating.evidence import DrafterProof, ExactnessEvidence, ProfitEvidence
from serve_app.gating.records import Reason, Verdict
from tests.serve_app.gating.making import KEY, MEASURED, PROOF, WRONG, point, profit_key

NOTHING = DrafterProof(tokens=0, mismatches=0, drafts=0, accepted=0)
UNDRAFTED = DrafterProof(tokens=64, mismatches=0, drafts=0, accepted=0)


@pytest.mark.parametrize(
    ("proofs", "rungs", "verdict", "reason", "detail"),
    [
        ({"ngram": PROOF}, (8, 16), Verdict.PASS, None, "made up"),
        (
            {"ngram": PROOF, "oracle": WRONG},
            (8,),
            Verdict.FAIL,
            Reason.INEXACT,
            "with oracle drafts: prompt mt_bench-81",
        ),
        ({"off": WRONG}, (8,), Verdict.FAIL, Reason.INEXACT, "without drafts, in a batch: prompt mt_bench-81"),
        ({"ngram": PROOF}, (), Verdict.FAIL, Reason.RUNG_REFUSED, "no window of 8 rows"),
        ({"off": UNDRAFTED}, (8,), Verdict.DID_NOT_RUN, Reason.NO_DRAFTS, "no draft"),
        ({"ngram": NOTHING}, (8,), Verdict.DID_NOT_RUN, Reason.NOTHING_COMPARED, "no reply"),
    ],
)
def test_exactness(
    proofs: dict[str, DrafterProof], rungs: tuple[int, ...], verdict: Verdict, reason: Reason | None, detail: str
) -> None:
    evidence = ExactnessEvidence(drafters=proofs, rungs=rungs, refused={16: "hidden row 3 differs"})
    record = judge_exactness(evidence, key=KEY, measured=MEASURED, description="made up")
    assert (record.verdict, record.reason) == (verdict, reason)
    assert detail in record.detail
    assert record.detail.endswith("made up")


@pytest.mark.parametrize(
    ("ratios", "verdict", "reason", "detail"),
    [
        ({1: 1.6, 4: 0.8}, Verdict.PASS, None, "1.60 times as fast at 1 active slot with K 7"),
        ({1: 1.01, 4: 0.8}, Verdict.FAIL, Reason.NOT_FASTER, "at best 1.01 times as fast at 1 active slot"),
        ({2: 0.5}, Verdict.FAIL, Reason.NOT_FASTER, "at best 0.50 times as fast at 2 active slots"),
        ({}, Verdict.DID_NOT_RUN, Reason.NO_DRAFTS, "no window had drafts"),
    ],
)
def test_profit(ratios: dict[int, float], verdict: Verdict, reason: Reason | None, detail: str) -> None:
    evidence = ProfitEvidence(points=tuple(point(active, ratio) for active, ratio in ratios.items()))
    record = judge_profit(evidence, key=profit_key(), measured=MEASURED, description="made up")
    assert (record.verdict, record.reason) == (verdict, reason)
    assert (
        record.detail == f"{detail.removesuffix(' with K 7')} with K 7; made up" if ratios else detail in record.detail
    )


def test_a_gain_that_is_asked_for_decides() -> None:
    evidence = ProfitEvidence(points=(point(1, 1.1),))
    for least, verdict in ((1.05, Verdict.PASS), (1.2, Verdict.FAIL)):
        record = judge_profit(evidence, key=profit_key(), measured=MEASURED, description="made up", least_gain=least)
        assert record.verdict is verdict


def test_an_error_is_no_failure_of_the_drafter() -> None:
    record = failed_profit(ValueError("the drafter is gone"), key=profit_key(), measured=MEASURED)
    assert (record.verdict, record.reason, record.detail) == (
        Verdict.DID_NOT_RUN,
        Reason.FAILED,
        "the drafter is gone",
    )
    assert failed_profit(ValueError(), key=profit_key(), measured=MEASURED).detail == "ValueError"


def test_where_nothing_was_drafted_nothing_was_shown() -> None:
    silent = msgspec.structs.replace(point(1, 1.5), rounds=0)
    record = judge_profit(ProfitEvidence(points=(silent,)), key=profit_key(), measured=MEASURED, description="made up")
    assert (record.verdict, record.reason) == (Verdict.DID_NOT_RUN, Reason.NO_DRAFTS)
