"""From a store to the rule a verifier obeys: how it begins, how it follows, and what is said about it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.messages.gates import GateReport
from deployments.messages.generation import Decline
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.file_store import FileStore
from serve_app.gating.gatekeeper import Choosing, DrafterChoice, GateSettings, StoreGatekeeper, StoreWatch
from serve_app.gating.opening import StoreSettings
from serve_app.gating.policy import Candidate, Order, State, Why
from serve_app.gating.records import Setting
from tests.serve_app.gating.making import exactness, forced, key, profit, profit_key
from tests.serve_app.gating.programs import facts

NGRAM = DrafterChoice(kind="ngram", settings=NgramSettings(max_k=7))
CANDIDATE = Candidate(kind="ngram", key=profit_key())
SETTINGS = GateSettings(
    store=StoreSettings(url="file:unused"), choosing=Choosing.AUTO, drafters=(NGRAM,), reason="drafter.kind is auto"
)


@contextmanager
def watching(path: Path, /, *, settings: GateSettings = SETTINGS) -> Iterator[tuple[StoreWatch, list[dict[str, Any]]]]:
    said: list[dict[str, Any]] = []
    watch = StoreWatch(
        FileStore(path, poll_s=0.02), settings=settings, candidates=(CANDIDATE,), slots=8, say=said.append
    )
    try:
        yield watch, said
    finally:
        watch.close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def passed(path: Path) -> FileStore:
    store = FileStore(path)
    store.put(exactness())
    store.put(profit())
    return store


def test_an_empty_store_lets_nothing_run_and_says_what_to_do(tmp_path: Path) -> None:
    with watching(tmp_path / "gates.yaml") as (watch, said):
        rule, report = watch.rule, watch.report()
    assert (rule.kind, rule.state, rule.gated, rule.reason) == (None, "unknown", False, "not_gated")
    assert rule.sentence.startswith("drafter.kind is auto; ngram: not gated on this chip")
    assert "outrider gate run" in rule.sentence
    assert [rule.k_for(active) for active in range(10)] == [0] * 10
    assert report.store["state"] == "empty"
    assert said == []


def test_what_has_passed_runs_from_the_start_within_its_limits(tmp_path: Path) -> None:
    passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml") as (watch, said):
        rule = watch.rule
        time.sleep(0.1)
    assert (rule.kind, rule.state, rule.gated, rule.reason, rule.stop_above) == ("ngram", "settled", True, "passed", 2)
    assert [rule.k_for(active) for active in (1, 2, 3, 8)] == [7, 7, 0, 0]
    assert rule.revision == 2
    # The start-up line has said so.
    assert said == []


def test_a_change_becomes_a_new_rule_and_a_line(tmp_path: Path) -> None:
    with watching(tmp_path / "gates.yaml") as (watch, said):
        store = passed(tmp_path / "gates.yaml")
        until(lambda: watch.rule.kind == "ngram")
        store.force(forced(Setting.OFF, kind="ngram"))
        until(lambda: watch.rule.reason == "disabled_by_operator")
        off = watch.rule
        store.unforce(forced(kind="ngram").target)
        until(lambda: watch.rule.gated)
    assert (off.kind, off.state) == (None, "declined")
    assert "alice" in off.sentence
    line = next(line for line in said if line["reason"] == "disabled_by_operator")
    assert (line["event"], line["used"], line["revision"]) == ("gates", False, 3)
    assert line["before"] == {"method": "ngram", "state": "settled", "reason": "passed"}
    assert line["changes"] == ["kind ngram: forced off by alice: the chip is hot"]


@pytest.mark.parametrize("harm", ["garbage", "gone", "a folder"])
def test_a_store_that_fails_takes_nothing_away(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "gates.yaml"
    passed(path)
    with watching(path) as (watch, said):
        before = watch.rule
        path.unlink()
        if harm == "garbage":
            path.write_text("schema: [")
        if harm == "a folder":
            path.mkdir()
        until(lambda: watch.report().store["state"] in ("unreadable", "missing", "unreachable"))
        report = watch.report()
        assert watch.rule == before
        # What is obeyed stays; what is said of it names the trouble while it lasts.
        trouble = f"; the store of the gates is {report.store['state']}: {report.store['detail']}"
        assert report.rule == msgspec.structs.replace(before, sentence=before.sentence + trouble)
        assert said == []
    assert sum(report.store[count] for count in ("parse_errors", "missing", "unreachable")) == 1


def test_a_store_that_cannot_be_read_at_the_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "gates.yaml").write_text("schema: [")
    with watching(tmp_path / "gates.yaml") as (watch, _):
        assert watch.rule.kind is None
        assert "the store of the gates is unreadable: line" in watch.report().rule.sentence
        (tmp_path / "gates.yaml").unlink()
        passed(tmp_path / "gates.yaml")
        until(lambda: watch.report().store["state"] == "current")
        assert "the store of the gates" not in watch.report().rule.sentence


def test_a_kind_picked_by_hand_runs_ungated_and_says_so(tmp_path: Path) -> None:
    settings = replace(SETTINGS, choosing=Choosing.PICKED, reason="drafter.kind is ngram, picked by hand")
    with watching(tmp_path / "gates.yaml", settings=settings) as (watch, _):
        rule = watch.rule
        FileStore(tmp_path / "gates.yaml").put(exactness(is_exact=False))
        until(lambda: watch.rule.kind is None)
        wrong = watch.rule
    assert (rule.kind, rule.gated, rule.reason, rule.stop_above) == ("ngram", False, "not_gated", None)
    assert "not gated on this chip" in rule.sentence
    assert "gate run" not in rule.sentence
    assert (wrong.state, wrong.reason) == ("declined", "inexact")


def test_what_was_forced_is_not_shown_as_measured(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "gates.yaml")
    store.force(forced(Setting.ON, kind="ngram"))
    with watching(tmp_path / "gates.yaml") as (watch, _):
        report = watch.report()
    (candidate,) = report.candidates
    assert (report.rule.state, report.rule.gated, report.rule.kind) == ("forced", False, "ngram")
    assert candidate["exactness"] is candidate["profit"] is None
    assert (candidate["forced"]["setting"], candidate["forced"]["by"]) == ("on", "alice")


def test_a_report_has_the_key_and_the_evidence_in_short(tmp_path: Path) -> None:
    passed(tmp_path / "gates.yaml")
    with watching(tmp_path / "gates.yaml") as (watch, _):
        report = msgspec.json.decode(msgspec.json.encode(watch.report()), type=GateReport)
    (candidate,) = report.candidates
    assert msgspec.convert(candidate["key"], type(profit_key())) == profit_key()
    assert candidate["exactness"]["tokens"] == 3 * 4096
    assert (candidate["profit"]["verdict"], candidate["profit"]["points"][0]["active"]) == ("pass", 1)
    assert candidate["forced"] is None
    assert (report.schema, report.replica) == (1, "local")


def test_every_reason_for_not_running_can_be_counted() -> None:
    running = {Why.PASSED, Why.FORCED_ON, Why.PICKED}
    assert {why.value for why in Why} - running <= {decline.value for decline in Decline}
    assert {state.value for state in State} == {"settled", "unknown", "forced", "declined"}


@pytest.mark.parametrize("order", list(Order))
def test_a_gatekeeper_finds_the_key_of_the_programs_it_is_told_of(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.gating.running.HASHES", tmp_path / "hashes")
    settings = replace(SETTINGS, store=StoreSettings(url=f"file:{tmp_path / 'gates.yaml'}"), order=order)
    watch = StoreGatekeeper(settings=settings)(facts(tmp_path))
    try:
        (candidate,) = watch.report().candidates
    finally:
        watch.close()
    assert candidate["key"]["program"]["model"] == FileHashes(tmp_path).of_all([tmp_path / "model.gguf"])
    assert candidate["key"]["k_max"] == 7
    assert candidate["key"]["program"]["programs"] == key().programs


@pytest.mark.parametrize(
    ("choosing", "drafters", "kind", "state", "reason"),
    [
        (Choosing.PICKED, (), None, "declined", "disabled_by_operator"),
        (
            Choosing.UNGATED,
            (DrafterChoice(kind="random", settings=NoiseSettings(vocab_size=5)),),
            "random",
            "forced",
            "picked",
        ),
    ],
)
def test_without_anything_to_gate_no_store_is_looked_at(
    tmp_path: Path,
    choosing: Choosing,
    drafters: tuple[DrafterChoice, ...],
    kind: str | None,
    state: str,
    reason: str,
) -> None:
    settings = replace(
        SETTINGS, store=StoreSettings(url="none of any kind"), choosing=choosing, drafters=drafters, reason="by test"
    )
    watch = StoreGatekeeper(settings=settings)(facts(tmp_path))
    rule, report = watch.rule, watch.report()
    assert (rule.kind, rule.state, rule.reason, rule.gated, rule.sentence) == (kind, state, reason, False, "by test")
    assert rule.k_for(1) == (7 if kind else 0)
    assert (report.candidates, report.store) == ((), {})
