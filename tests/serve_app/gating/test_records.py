"""Records: none can say what its evidence does not, and an operator's word is never a verdict."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from serve_app.gating.evidence import ExactnessEvidence, ProfitEvidence
from serve_app.gating.records import Forced, ProfitRecord, Reason, Setting, Target, Verdict
from tests.serve_app.gating.making import MEASURED, WRONG, exactness, forced, key, point, profit, profit_key

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"verdict": Verdict.FAIL, "reason": None}, "needs one of the reasons inexact, rung_refused"),
        ({"verdict": Verdict.FAIL, "reason": Reason.NOT_FASTER}, "needs one of the reasons"),
        ({"verdict": Verdict.PASS, "reason": Reason.INEXACT}, "needs one of the reasons none"),
        ({"verdict": Verdict.DID_NOT_RUN, "reason": Reason.INEXACT}, "needs one of the reasons failed, no_drafts"),
        ({"evidence": ExactnessEvidence()}, "needs tokens compared"),
        ({"evidence": ExactnessEvidence(drafters={"ngram": WRONG})}, "no mismatches"),
        ({"verdict": Verdict.FAIL, "reason": Reason.INEXACT}, "needs a mismatch"),
    ],
)
def test_exactness_says_what_was_found(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(exactness(), **parts)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"verdict": Verdict.FAIL, "reason": Reason.INEXACT}, "needs one of the reasons not_faster"),
        ({"evidence": ProfitEvidence()}, "at which speculation is faster"),
        ({"evidence": ProfitEvidence(points=(point(1, 0.99), point(2, 1.0)))}, "at which speculation is faster"),
    ],
)
def test_profit_says_what_was_found(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(profit(), **parts)


def test_a_check_that_did_not_run_needs_no_evidence() -> None:
    record = ProfitRecord(
        key=profit_key(),
        verdict=Verdict.DID_NOT_RUN,
        reason=Reason.NO_DRAFTS,
        detail="the drafter did not answer",
        measured=MEASURED,
    )
    assert (record.has_passed, record.verdict_text) == (False, "did_not_run (no_drafts)")


def test_a_target_means_what_has_all_its_parts() -> None:
    pairing = profit_key()
    for target, holds in {
        Target(): True,
        Target(kind="ngram"): True,
        Target(kind="mtp"): False,
        Target(chip=pairing.program.chip.kind, model=pairing.program.model): True,
        Target(chip=pairing.program.chip.kind, kind="mtp"): False,
        Target(pairing=profit().id): True,
        Target(pairing=exactness().id): False,
    }.items():
        assert target.holds(pairing) is holds, target
    assert str(Target()) == "everything"
    assert str(Target(kind="ngram", chip="TPU v6e")) == "kind ngram, chip TPU v6e"


def test_what_is_forced_is_no_verdict() -> None:
    assert not {setting.value for setting in Setting} & {verdict.value for verdict in Verdict}
    assert str(forced(Setting.ON)) == "forced on by alice: the chip is hot"
    assert forced(Setting.ON).id == forced(Setting.OFF).id != forced(kind="ngram").id


def test_moments_have_a_zone() -> None:
    raw = msgspec.to_builtins(forced()) | {"at": "2026-11-29T10:00:00"}
    with pytest.raises(msgspec.ValidationError, match="timezone"):
        msgspec.convert(raw, Forced)
    assert msgspec.convert(raw | {"at": "2026-11-29T10:00:00Z"}, Forced).at == datetime(2026, 11, 29, 10, tzinfo=UTC)


def test_records_with_other_keys_have_other_ids() -> None:
    assert len({exactness().id, exactness(key(slots=4)).id, profit().id, profit(profit_key("mtp")).id}) == 4
