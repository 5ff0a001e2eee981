"""What a verifier obeys when it speculates, and says of it at its start. Knows rules; not where they come from."""

import json
import sys
from collections.abc import Callable

from deployments.messages.gates import SpeculationRule
from deployments.verifier.probe import ProbeReport


def ungated(*, slots: int, draft_k: int) -> Callable[[], SpeculationRule]:
    """The rule where no gates are asked: all the drafts that there is room for."""
    rule = SpeculationRule(
        kind="any",
        state="forced",
        gated=False,
        reason="ungated",
        sentence="no gates are asked",
        k_by_active_slots=(draft_k,) * slots,
    )
    return lambda: rule


def say_speculation(rule: SpeculationRule, /, *, draft_k: int, report: ProbeReport) -> None:
    """The start-up line: whether this verifier speculates, with what, and why."""
    is_used = rule.kind is not None
    line = {
        "event": "speculation",
        "used": is_used,
        "method": rule.kind,
        "draft_k": draft_k if is_used else 0,
        "gated": rule.gated,
        "state": rule.state,
        "reason": rule.reason,
        "sentence": rule.sentence,
        "message": _message(rule),
        "stop_above": rule.stop_above if is_used else 0,
        "revision": rule.revision,
        "rungs": len(report.ladder.rungs),
        "refused_rungs": len(report.refused),
    }
    print(json.dumps(line), file=sys.stderr, flush=True)


def _message(rule: SpeculationRule) -> str:
    if rule.kind is None:
        return "speculation: off"
    return "speculation: passed on this chip" if rule.gated else "speculation: not gated on this chip"
