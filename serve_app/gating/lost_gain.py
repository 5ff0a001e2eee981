"""What follows when drafts are found to gain nothing any more while serving: a line, and perhaps another rule. Pure.

What was found so is no evidence, and is never written into a store: `outrider gate run` measures.
"""

from enum import StrEnum

import msgspec

from deployments.messages.gates import LiveGain, SpeculationRule
from serve_app.gating.policy import State, Why


class OnLostGain(StrEnum):
    """What a verifier does when the gain on record is gone for good: say so, or stop drafting too."""

    WARN = "warn"
    STOP = "stop"


class Action(StrEnum):
    """What was done."""

    WARNED = "warned"
    STOPPED = "stopped"
    NONE = "none"


def stopped_rule(rule: SpeculationRule, /, *, found: LiveGain) -> SpeculationRule:
    """The rule without drafts."""
    return msgspec.structs.replace(
        rule,
        kind=None,
        state=State.DECLINED.value,
        gated=False,
        reason=Why.NOT_FASTER.value,
        sentence=f"{_sentence(found, kind=rule.kind)}; {_STOPPED}",
        k_by_active_slots=(0,) * len(rule.k_by_active_slots),
        stop_above=0,
        expected=(),
    )


def gain_line(found: LiveGain, /, *, rule: SpeculationRule, action: Action) -> dict[str, object]:
    """What is said once when the gain is gone, and once when it is back.

    Args:
        rule: under which it was found.
    """
    said: dict[str, object] = msgspec.to_builtins(found)
    del said["is_lost"]
    return {
        "event": "gates_gain_lost" if found.is_lost else "gates_gain_back",
        "method": rule.kind,
        "state": rule.state,
        "revision": rule.revision,
        "action": action.value,
        "sentence": f"{_sentence(found, kind=rule.kind)}; {_DONE[action]}",
        **said,
    }


_MEASURE = "run 'outrider gate run' with this configuration to measure again"
_STOPPED = f"found live, not measured: no drafts until its records change or this replica restarts; {_MEASURE}"
_DONE = {
    Action.WARNED: f"found live, not measured: it goes on drafting; {_MEASURE}",
    Action.STOPPED: _STOPPED,
    Action.NONE: "the warning of before is over",
}


def _sentence(found: LiveGain, *, kind: str | None) -> str:
    return (
        f"{kind}: {found.found.gain:.2f} times as fast as without drafts where {found.recorded.gain:.2f} is on record, "
        f"over the last {found.windows} windows in {found.seconds:.0f} s"
    )
