"""What a watch reports, as metrics."""

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from deployments.messages.gates import GainFigures, GateReport, LiveGain, SpeculationRule
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

    def gain_found(self, found: LiveGain, /) -> None: ...

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


def test_what_was_found_live_stands_beside_what_is_on_record() -> None:
    found = GainFigures(gain=0.8, tokens_per_round=1.2, plain_window_ms=20.0, window_ms=26.0)
    live = LiveGain(
        windows=900,
        drafted_windows=500,
        seconds=60.0,
        plain_windows="seen",
        wait_ms=0.4,
        found=found,
        recorded=replace(found, gain=1.6, tokens_per_round=2.1),
        is_lost=True,
    )
    watch = Watch(shown=GateReport(schema=1, replica="v", rule=RULE, live=live, gains_lost=1))
    metrics = RegistryMetrics(GATE_METRICS)
    gauges = GateGauges(watch, metrics=metrics, slots=8)
    gauges.refresh()
    gauges.refresh()
    assert (metrics.value("gate_gain_lost_total"), metrics.value("gate_gain_is_lost")) == (1, 1)
    assert (metrics.value("gate_live_gain"), metrics.value("gate_recorded_gain")) == (0.8, 1.6)
    assert metrics.value("gate_live_tokens_per_round") == 1.2
    assert metrics.value("gate_recorded_tokens_per_round") == 2.1
    watch.shown = replace(watch.shown, live=None, gains_lost=2)
    gauges.refresh()
    assert (metrics.value("gate_gain_lost_total"), metrics.value("gate_gain_is_lost")) == (2, 0)
