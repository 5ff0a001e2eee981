"""What follows when drafts gain nothing any more: a line, another rule where that is wanted, and until when."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.messages.gates import GainFigures, GateReport, LiveGain
from serve_app.gating.gatekeeper import Choosing, StoreGatekeeper, StoreWatch
from serve_app.gating.lost_gain import OnLostGain
from serve_app.gating.records import Measured, Setting
from tests.serve_app.gating.making import forced, profit, profit_key
from tests.serve_app.gating.programs import facts
from tests.serve_app.gating.test_gatekeeper import SETTINGS, passed, until, watching

STOP = replace(SETTINGS, on_lost_gain=OnLostGain.STOP)
FINE = LiveGain(
    windows=900,
    drafted_windows=500,
    seconds=60.0,
    plain_windows="seen",
    wait_ms=0.4,
    found=GainFigures(gain=1.55, tokens_per_round=1.9, plain_window_ms=20.0, window_ms=26.0),
    recorded=GainFigures(gain=1.6, tokens_per_round=2.14, plain_window_ms=20.0, window_ms=26.5),
    is_lost=False,
)
LOST = msgspec.structs.replace(
    FINE, is_lost=True, found=GainFigures(gain=0.81, tokens_per_round=1.1, plain_window_ms=20.0, window_ms=26.0)
)


def events(said: list[dict[str, Any]]) -> list[object]:
    return [line["event"] for line in said]


def test_a_loss_is_said_once_and_so_is_its_end(tmp_path: Path) -> None:
    passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml") as (watch, said):
        rule = watch.rule
        for found in (FINE, LOST, LOST, LOST, FINE, FINE, LOST):
            watch.gain_found(found)
        report = watch.report()
    assert events(said) == ["gates_gain_lost", "gates_gain_back", "gates_gain_lost"]
    lost, back, _ = said
    assert (lost["action"], lost["method"], lost["windows"], lost["plain_windows"]) == ("warned", "ngram", 900, "seen")
    assert (lost["found"]["gain"], lost["recorded"]["gain"], lost["wait_ms"]) == (0.81, 1.6, 0.4)
    assert "ngram: 0.81 times as fast as without drafts where 1.60 is on record" in lost["sentence"]
    assert "outrider gate run" in lost["sentence"]
    assert back["found"]["gain"] == 1.55
    assert "over" in back["sentence"]
    # It was no order, so nothing changed.
    assert watch.rule == rule
    assert (report.live, report.gains_lost) == (LOST, 2)


def test_it_can_stop_drafts_and_is_never_shown_as_measured(tmp_path: Path) -> None:
    passed(tmp_path / "gates.yaml")
    before = (tmp_path / "gates.yaml").read_bytes()
    with watching(tmp_path / "gates.yaml", settings=STOP) as (watch, said):
        watch.gain_found(LOST)
        rule = watch.rule
        # A window that was under way.
        watch.gain_found(LOST)
        report = msgspec.json.decode(msgspec.json.encode(watch.report()), type=GateReport)
    assert (rule.kind, rule.state, rule.reason, rule.gated) == (None, "declined", "not_faster", False)
    assert [rule.k_for(active) for active in range(1, 9)] == [0] * 8
    assert (rule.stop_above, rule.expected, rule.revision) == (0, (), 2)
    assert "found live, not measured" in rule.sentence
    assert "outrider gate run" in rule.sentence
    assert events(said) == ["gates_gain_lost"]
    assert said[0]["action"] == "stopped"
    assert (report.live, report.gains_lost) == (LOST, 1)
    # The record is what it was.
    assert report.candidates[0]["profit"]["verdict"] == "pass"
    assert (tmp_path / "gates.yaml").read_bytes() == before


def test_it_lasts_until_the_records_of_that_key_change(tmp_path: Path) -> None:
    store = passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml", settings=STOP) as (watch, said):
        watch.gain_found(LOST)
        store.put(profit(profit_key("draft_model")))
        store.force(forced(Setting.ON, kind="draft_model"))
        until(lambda: watch.rule.revision == 4)
        kept = watch.rule
        again = msgspec.structs.replace(
            profit(), measured=Measured(at=profit().measured.at.replace(hour=20), outrider="0.1.0")
        )
        store.put(again)
        until(lambda: watch.rule.kind == "ngram")
        rule, report = watch.rule, watch.report()
        # What is found with the new record is another loss.
        watch.gain_found(LOST)
        stopped = watch.rule
    assert (kept.kind, kept.reason) == (None, "not_faster")
    assert "found live" in kept.sentence
    assert (rule.state, rule.gated) == ("settled", True)
    assert (report.live, report.gains_lost) == (None, 1)
    assert stopped.kind is None
    assert said[-1]["event"] == "gates_gain_lost"


def test_an_operators_word_ends_it_too(tmp_path: Path) -> None:
    store = passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml", settings=STOP) as (watch, _):
        watch.gain_found(LOST)
        store.force(forced(Setting.ON, kind="ngram"))
        until(lambda: watch.rule.kind == "ngram")
        watch.gain_found(LOST)
        on = watch.rule
    assert (on.kind, on.state) == ("ngram", "forced")


@pytest.mark.parametrize("choosing", [Choosing.AUTO, Choosing.PICKED])
def test_where_an_operators_word_lets_them_run_it_only_warns(tmp_path: Path, choosing: Choosing) -> None:
    store = passed(tmp_path / "gates.yaml")
    store.force(forced(Setting.ON, kind="ngram"))
    with watching(tmp_path / "gates.yaml", settings=replace(STOP, choosing=choosing)) as (watch, said):
        watch.gain_found(LOST)
        rule = watch.rule
    assert (rule.kind, rule.state) == ("ngram", "forced")
    assert said[0]["action"] == "warned"


def test_without_a_record_there_is_nothing_to_lose(tmp_path: Path) -> None:
    settings = replace(STOP, choosing=Choosing.PICKED)
    with watching(tmp_path / "gates.yaml", settings=settings) as (watch, said):
        watch.gain_found(LOST)
        assert watch.rule.kind == "ngram"
        assert watch.report().live is None
    assert said == []
    fixed = StoreGatekeeper(settings=replace(STOP, choosing=Choosing.UNGATED))(facts(tmp_path))
    fixed.gain_found(LOST)
    assert fixed.rule.kind == "ngram"
    assert fixed.report().gains_lost == 0


def test_a_record_that_changes_while_a_loss_is_found_wins(tmp_path: Path) -> None:
    """The store's thread and the engine's at once, again and again: neither hangs, and the last record decides."""
    store = passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml", settings=STOP) as (watch, _):
        for minute in range(20):
            taken = profit().measured.at.replace(minute=minute)
            store.put(msgspec.structs.replace(profit(), measured=Measured(at=taken, outrider="0.1.0")))
            tell_until(watch, revision=minute + 3)
        store.put(profit(ratios={1: 1.4}))
        until(lambda: [each.gain for each in watch.rule.expected] == [1.4])
        assert watch.rule.kind == "ngram"


def tell_until(watch: StoreWatch, *, revision: int) -> None:
    deadline = time.monotonic() + 5
    while watch.rule.revision < revision:
        watch.gain_found(LOST)
        assert time.monotonic() < deadline


def test_an_operators_word_that_promises_the_same_counts_no_loss_twice(tmp_path: Path) -> None:
    """Whoever looks at the windows goes on as well, and says once more what is known."""
    store = passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml") as (watch, said):
        for found in (LOST, LOST):
            watch.gain_found(found)
        expected = watch.rule.expected
        store.force(forced(Setting.ON, kind="ngram"))
        until(lambda: watch.rule.state == "forced")
        assert (watch.rule.expected == expected) == (watch.report().live is not None)
        watch.gain_found(LOST)
        lost = 1 if watch.rule.expected == expected else 2
        assert watch.report().gains_lost == lost
    assert events(said).count("gates_gain_lost") == lost
