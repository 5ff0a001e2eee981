"""Records as operators see them over HTTP: keys whole, evidence in short. What was forced stays apart."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from serve_app.gating.evidence import ProfitPoint
from serve_app.gating.keys import record_id
from serve_app.gating.policy import Candidate
from serve_app.gating.records import ExactnessRecord, Forced, ProfitRecord, Record
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import StoreStatus


def described_candidate(candidate: Candidate, /, *, gates: Snapshot) -> dict[str, Any]:
    """A drafter's key, and what was measured and forced for it; `None` for what was not."""
    key = candidate.key
    if key is None:
        return {"kind": candidate.kind, "key": None, "why_not": candidate.why_not}
    return {
        "kind": candidate.kind,
        "pairing": record_id(key),
        "key": msgspec.to_builtins(key, str_keys=True),
        "exactness": _exactness(gates.exactness_for(key.program)),
        "profit": _profit(gates.profit_for(key)),
        "forced": _forced(gates.forced_for(key)),
    }


def described_store(status: StoreStatus, /) -> dict[str, Any]:
    """How the store was found last, and its counts."""
    changed = datetime.fromtimestamp(status.changed_at, tz=UTC).isoformat() if status.changed_at else None
    return {
        "state": status.state.value,
        "detail": status.detail,
        "revision": status.revision,
        "loads": status.loads,
        "changes": status.changes,
        "parse_errors": status.parse_errors,
        "missing": status.missing,
        "unreachable": status.unreachable,
        "unreachable_s": status.unreachable_s,
        "changed_at": changed,
    }


def _exactness(record: ExactnessRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    evidence = record.evidence
    return {
        **_judged(record),
        "tokens": evidence.tokens,
        "mismatches": evidence.mismatches,
        "drafts": evidence.drafts,
        "first": None if evidence.first is None else str(evidence.first),
        "rungs": list(evidence.rungs),
    }


def _profit(record: ProfitRecord | None) -> dict[str, Any] | None:
    return None if record is None else {**_judged(record), "points": [_point(each) for each in record.evidence.points]}


def _point(point: ProfitPoint) -> dict[str, Any]:
    ratio = {"median": point.ratio.median, "min": point.ratio.min, "max": point.ratio.max}
    return {"active": point.active, "k": point.k, "ratio": ratio, "pairs": point.pairs}


def _judged(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "verdict": record.verdict.value,
        "reason": None if record.reason is None else record.reason.value,
        "detail": record.detail,
        "measured_at": record.measured.at.isoformat(),
        "outrider": record.measured.outrider,
    }


def _forced(forced: Forced | None) -> dict[str, Any] | None:
    return None if forced is None else {"id": forced.id, **msgspec.to_builtins(forced)}
