"""Gates of a running service: what is written into its store decides from the next window on. No reply changes."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.gating.file_store import FileStore
from serve_app.gating.records import Forced, Setting, Target
from serve_app.local import Service
from tests.graph.gating_service import (
    RATIOS,
    ask,
    declined,
    gated_config,
    gates,
    in_force,
    lines,
    running_key,
    speculates,
    under_load,
)
from tests.graph.stage import Page, Stage, metrics, until
from tests.serve_app.gating.making import exactness, profit

pytestmark = pytest.mark.serve

OFF = Forced(
    target=Target(kind="ngram"), setting=Setting.OFF, by="alice", at=datetime(2026, 11, 29, tzinfo=UTC), why="a test"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


@pytest.fixture
def gated_service(the_stage: Stage, golden_llama: Path, folder: Path) -> Service:
    """The golden llama with `auto`, and a store that holds nothing when it starts."""
    store = f"file:{folder / 'gates.yaml'}"
    return the_stage.service(gated_config(golden_llama / "llama.f16.gguf", store=store, folder=folder))


@pytest.fixture
def store(folder: Path) -> FileStore:
    return FileStore(folder / "gates.yaml")


def gate_page(service: Service) -> Page:
    return metrics(service.url)


def test_from_an_empty_store_to_speculation_and_back(gated_service: Service, store: FileStore, folder: Path) -> None:
    service = gated_service
    line = lines(service, event="speculation")[-1]
    assert "drafter.kind is auto" in line["sentence"]
    assert (line["used"], line["reason"], line["state"], line["gated"]) == (False, "not_gated", "unknown", False)
    assert "outrider gate run" in line["sentence"]
    plain = ask(service)
    assert not speculates(plain)
    assert declined(plain).keys() == {"not_gated"}
    seen = gates(service)
    assert (seen["state"], seen["kind"], seen["gated"], seen["schema"]) == ("unknown", None, False, 1)
    assert seen["candidates"][0]["exactness"] is seen["candidates"][0]["profit"] is None
    assert gate_page(service).total("gate_speculates") == 0

    key = running_key(service)
    with under_load(service) as load:
        store.put(exactness(key.program))
        paying = profit(key, ratios=RATIOS)
        in_force(lambda: store.put(paying), when=lambda: speculates(ask(service)))
        seen, page = gates(service), gate_page(service)
        assert (seen["state"], seen["gated"], seen["stop_above"], seen["revision"]) == ("settled", True, 3, 2)
        assert seen["candidates"][0]["profit"]["verdict"] == "pass"
        assert page.total("gate_state", state="settled") == 1
        assert (page.total("gate_revision"), page.total("gate_stop_above")) == (2, 3)

        in_force(lambda: store.force(OFF), when=lambda: declined(ask(service)).keys() == {"disabled_by_operator"})
        seen = gates(service)
        assert (seen["state"], seen["reason"], seen["gated"]) == ("declined", "disabled_by_operator", False)
        assert "alice" in seen["sentence"]
        in_force(lambda: store.unforce(OFF.target), when=lambda: speculates(ask(service)))

        whole = (folder / "gates.yaml").read_bytes()
        spoil_and_mend(service, folder=folder, whole=whole)
        fast = ask(service)
        assert speculates(fast)
    load.check()
    # Tokens and their log-probabilities.
    assert fast["choices"] == plain["choices"]
    told = [change for line in lines(service, event="gates") for change in line["changes"]]
    assert any("profit of ngram" in change and "added: pass" in change for change in told)
    assert any("forced off by alice" in change for change in told)


def spoil_and_mend(service: Service, *, folder: Path, whole: bytes) -> None:
    """Garbage, then nothing at all: what was last read stays in force, and the counters tell."""
    path = folder / "gates.yaml"
    path.write_text("schema: 1\nexactness: [\n")
    page = until(
        lambda: gate_page(service), holds=lambda page: page.total("gate_store_parse_errors_total") == 1, within_s=5.0
    )
    assert page.total("gate_store_state", state="unreadable") == 1
    assert page.total("gate_speculates") == page.total("gate_state", state="settled") == 1
    assert "line" in gates(service)["store"]["detail"]
    assert speculates(ask(service))
    path.unlink()
    page = until(
        lambda: gate_page(service), holds=lambda page: page.total("gate_store_missing_total") == 1, within_s=5.0
    )
    assert page.total("gate_store_state", state="missing") == 1
    assert speculates(ask(service))
    path.write_bytes(whole)
    until(
        lambda: gate_page(service),
        holds=lambda page: page.total("gate_store_state", state="current") == 1,
        within_s=5.0,
    )


def test_speculation_stops_where_it_was_measured_to_lose(
    gated_service: Service, store: FileStore, folder: Path
) -> None:
    """With the record above: four replies at once have none in some window, and the same tokens."""
    service = gated_service
    key = running_key(service)
    store.put(exactness(key.program))
    paying = profit(key, ratios=RATIOS)
    store.put(paying)
    until(lambda: speculates(ask(service)), holds=bool, within_s=5.0)
    alone = ask(service)
    found: list[dict[str, Any]] = []
    crowd = [threading.Thread(target=lambda: found.append(ask(service))) for _ in range(8)]
    for each in crowd:
        each.start()
        time.sleep(0.01)
    for each in crowd:
        each.join()
    assert len(found) == 8
    assert all(reply["choices"] == alone["choices"] for reply in found)
    assert sum(declined(reply).get("too_many_slots", 0) for reply in found) > 0


def test_the_page_of_the_gates_needs_an_admin_key(gated_service: Service) -> None:
    url = f"{gated_service.url}/admin/gates"
    assert httpx.get(url, timeout=30.0).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer someone"}, timeout=30.0).status_code == 401
