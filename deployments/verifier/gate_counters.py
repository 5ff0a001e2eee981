"""What the verifier counts of the gates it obeys, and how a report becomes those numbers. Knows no stores."""

from typing import Any

from deployments.messages.gates import GateReport
from deployments.messages.metrics import MetricKind, Metrics, MetricSpec
from deployments.messages.ports import GateWatch

STATES = ("settled", "unknown", "forced", "declined")
STORE_STATES = ("unread", "current", "empty", "missing", "unreadable", "unreachable")

GATE_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(name="gate_revision", kind=MetricKind.GAUGE, help="Revision of the gates that are obeyed."),
    MetricSpec(
        name="gate_state",
        kind=MetricKind.GAUGE,
        help="1 for how far the gates are settled: settled, unknown, forced or declined.",
        labels=("state",),
    ),
    MetricSpec(
        name="gate_reason",
        kind=MetricKind.GAUGE,
        help="1 for why a drafter may run, or may not, as in the start-up line.",
        labels=("reason",),
    ),
    MetricSpec(name="gate_speculates", kind=MetricKind.GAUGE, help="1 while the gates let a drafter run."),
    MetricSpec(
        name="gate_stop_above",
        kind=MetricKind.GAUGE,
        help="The most active slots with drafts; the number of slots where there is no such limit.",
    ),
    MetricSpec(
        name="gate_gain_lost",
        kind=MetricKind.COUNTER,
        help="Times that the gain on record was found, by the windows that serve, to be gone for good.",
    ),
    MetricSpec(name="gate_gain_is_lost", kind=MetricKind.GAUGE, help="1 from then until it is back."),
    MetricSpec(
        name="gate_live_gain",
        kind=MetricKind.GAUGE,
        help="How many times as fast as plain decoding drafts made the last span of windows; 0 before there is one.",
    ),
    MetricSpec(name="gate_recorded_gain", kind=MetricKind.GAUGE, help="The same on record, at the load of that span."),
    MetricSpec(
        name="gate_live_tokens_per_round",
        kind=MetricKind.GAUGE,
        help="Tokens a window gave a request with drafts in it, in the last span.",
    ),
    MetricSpec(
        name="gate_recorded_tokens_per_round",
        kind=MetricKind.GAUGE,
        help="The same on record, at the load of that span.",
    ),
    MetricSpec(
        name="gate_store_state",
        kind=MetricKind.GAUGE,
        help="1 for how the store was found last: unread, current, empty, missing, unreadable or unreachable.",
        labels=("state",),
    ),
    MetricSpec(name="gate_store_loads", kind=MetricKind.COUNTER, help="Reads of the whole store that succeeded."),
    MetricSpec(name="gate_store_changes", kind=MetricKind.COUNTER, help="Times the gates became others."),
    MetricSpec(
        name="gate_store_parse_errors",
        kind=MetricKind.COUNTER,
        help="Contents of the store that made no sense, each counted once.",
    ),
    MetricSpec(name="gate_store_missing", kind=MetricKind.COUNTER, help="Times the store was gone."),
    MetricSpec(name="gate_store_unreachable", kind=MetricKind.COUNTER, help="Times the store became unreachable."),
    MetricSpec(
        name="gate_store_unreachable_seconds", kind=MetricKind.COUNTER, help="Seconds the store was unreachable."
    ),
)

_COUNTED = {
    "loads": "gate_store_loads",
    "changes": "gate_store_changes",
    "parse_errors": "gate_store_parse_errors",
    "missing": "gate_store_missing",
    "unreachable": "gate_store_unreachable",
    "unreachable_s": "gate_store_unreachable_seconds",
}


class GateGauges:
    """Puts what a watch reports into metrics.

    Args:
        slots: of the verifier.
    """

    def __init__(self, watch: GateWatch, *, metrics: Metrics, slots: int) -> None:
        self._watch = watch
        self._metrics = metrics
        self._slots = slots
        self._counted: dict[str, float] = {}
        self._reasons: set[str] = set()

    def refresh(self) -> None:
        """Makes the metrics say what the watch does now; to be called before they are read."""
        report = self._watch.report()
        rule = report.rule
        self._metrics.set("gate_revision", value=rule.revision)
        self._metrics.set("gate_speculates", value=rule.kind is not None)
        self._metrics.set("gate_stop_above", value=self._slots if rule.stop_above is None else rule.stop_above)
        self._choose("gate_state", chosen=rule.state, among=STATES)
        self._reasons.add(rule.reason)
        self._choose("gate_reason", chosen=rule.reason, among=tuple(self._reasons))
        self._show_gain(report)
        if report.store:
            self._choose("gate_store_state", chosen=report.store["state"], among=STORE_STATES)
            self._count(report.store)

    def _show_gain(self, report: GateReport) -> None:
        self._grow("gate_gain_lost", total=float(report.gains_lost))
        live = report.live
        self._metrics.set("gate_gain_is_lost", value=live is not None and live.is_lost)
        if live is not None:
            for name, figures in (("live", live.found), ("recorded", live.recorded)):
                self._metrics.set(f"gate_{name}_gain", value=figures.gain)
                self._metrics.set(f"gate_{name}_tokens_per_round", value=figures.tokens_per_round)

    def _choose(self, name: str, *, chosen: str, among: tuple[str, ...]) -> None:
        for each in among:
            self._metrics.set(name, value=each == chosen, labels=(each,))

    def _count(self, store: dict[str, Any]) -> None:
        for field, name in _COUNTED.items():
            self._grow(name, total=float(store[field]))

    def _grow(self, name: str, *, total: float) -> None:
        grown = total - self._counted.get(name, 0)
        if grown > 0:
            self._metrics.add(name, amount=grown)
            self._counted[name] = total
