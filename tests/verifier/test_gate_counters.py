"""What a watch reports, as metrics."""

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from deployments.messages.gates import GateReport, SpeculationRule
from deployments.verifier.gate_counters import GATE_METRICS, GateGauges
from tests.ingress.fakes import RegistryMetrics

RULE = SpeculationRule(
    kind="ngram", state="settled", gated=True, reason="passed", sentence="passed", stop_above=3, revision=7
)
STORE: dict[str, Any] = {
    "state": "current",
    "loads": 4,
    "changes": 2,
    "parse_errors": 0,
    "missing": 0,
    "unreachable": 0,
    "unreachable_s": 0.0,
}


@dataclass(kw_only=True)
class Watch:
    """A `GateWatch` that reports what tests put there."""

    shown: GateReport

    @property
    def rule(self) -> SpeculationRule:
        return self.shown.rule

    def report(self) -> GateReport:
        return self.shown

    def close(self) -> None: ...


def test_gauges_follow_and_counters_grow_by_what_was_added() -> None:
    watch = Watch(shown=GateReport(schema=1, replica="v", rule=RULE, store=STORE))
    metrics = RegistryMetrics(GATE_METRICS)
    gauges = GateGauges(watch, metrics=metrics, slots=8)
    gauges.refresh()
    gauges.refresh()
    assert (metrics.value("gate_revision"), metrics.value("gate_speculates")) == (7, 1)
    assert metrics.value("gate_stop_above") == 3
    assert metrics.value("gate_reason", reason="passed") == 1
    assert (metrics.value("gate_store_loads_total"), metrics.value("gate_store_changes_total")) == (4, 2)

    off = replace(RULE, kind=None, state="declined", reason="inexact", stop_above=None, revision=8)
    trouble = STORE | {"state": "unreadable", "loads": 5, "parse_errors": 1, "unreachable_s": 1.5}
    watch.shown = GateReport(schema=1, replica="v", rule=off, store=trouble)
    gauges.refresh()
    states = {name: metrics.value("gate_state", state=name) for name in ("settled", "unknown", "forced", "declined")}
    assert states == {"settled": 0, "unknown": 0, "forced": 0, "declined": 1}
    assert [metrics.value("gate_reason", reason=reason) for reason in ("passed", "inexact")] == [0, 1]
    assert [metrics.value("gate_store_state", state=state) for state in ("current", "unreadable")] == [0, 1]
    assert metrics.value("gate_stop_above") == 8
    counted = [metrics.value(f"gate_store_{name}_total") for name in ("loads", "parse_errors", "unreachable_seconds")]
    assert counted == [5, 1, 1.5]


def test_without_a_store_there_is_nothing_to_count() -> None:
    metrics = RegistryMetrics(GATE_METRICS)
    GateGauges(Watch(shown=GateReport(schema=1, replica="v", rule=RULE)), metrics=metrics, slots=8).refresh()
    assert metrics.value("gate_store_loads_total") == 0
    assert metrics.value("gate_state", state="settled") == 1
