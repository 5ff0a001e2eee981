"""A service whose record promises what is not so: it finds out, says so, and stops drafting. No reply changes."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from serve_app.gates_config import GatesConfig
from serve_app.gating.evidence import ProfitEvidence
from serve_app.gating.file_store import FileStore
from serve_app.gating.keys import ProfitKey
from serve_app.gating.lost_gain import OnLostGain
from serve_app.gating.records import ProfitRecord
from serve_app.local import Service
from tests.graph.gating_service import declined, gated_config, gates, lines, running_key, speculates
from tests.graph.stage import Stage, metrics, until
from tests.serve_app.gating.making import exactness, point, profit

pytestmark = pytest.mark.serve


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gains")


@pytest.fixture
def watchful_service(the_stage: Stage, golden_llama: Path, folder: Path) -> Service:
    """Judges after few windows."""
    store = f"file:{folder / 'gates.yaml'}"
    config = gated_config(golden_llama / "llama.f16.gguf", store=store, folder=folder)
    gates = GatesConfig(
        store=store, on_lost_gain=OnLostGain.STOP, lost_gain_windows=5, lost_gain_seconds=0.001, least_gain=1.0
    )
    return the_stage.service(config.model_copy(update={"gates": gates}))


def ask(service: Service) -> dict[str, Any]:
    """A reply of two tokens at random: there is always a guess, and every other one is wrong."""
    body = {
        "model": service.model,
        "prompt": [7, 8, 7, 7, 8, 8, 7],
        "max_tokens": 100,
        "temperature": 1,
        "seed": 3,
        "logit_bias": {"7": 100, "8": 100},
    }
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def promising(key: ProfitKey, /) -> ProfitRecord:
    """One draft a window gains half as much again, since a window without any takes a thirtieth: nothing is like that.

    Of the times, those of windows that are not seen while serving count, and few windows have no draft.
    """
    much = replace(point(1, 1.5, k=1), plain_window_ms=1.0, window_ms=30.0)
    return replace(profit(key), evidence=ProfitEvidence(points=(much,)))


def test_a_gain_that_is_not_there_is_found_and_drafts_stop(watchful_service: Service, folder: Path) -> None:
    service, store = watchful_service, FileStore(folder / "gates.yaml")
    plain = ask(service)
    assert not speculates(plain)
    key = running_key(service)
    store.put(exactness(key.program))
    store.put(promising(key))
    until(lambda: gates(service)["state"] == "settled", holds=bool, within_s=5.0)
    replies = [ask(service)]
    assert speculates(replies[0])

    def stopped() -> bool:
        replies.append(ask(service))
        return not speculates(replies[-1])

    until(stopped, holds=bool, within_s=60.0)
    assert declined(replies[-1]).keys() == {"not_faster"}
    seen, page = gates(service), metrics(service.url)
    assert (seen["kind"], seen["state"], seen["reason"], seen["gated"]) == (None, "declined", "not_faster", False)
    assert "found live, not measured" in seen["sentence"]
    assert (seen["gains_lost"], seen["live"]["is_lost"], seen["live"]["recorded"]["gain"]) == (1, True, 1.5)
    assert seen["live"]["found"]["gain"] < 0.95
    # The record stays what it was.
    assert seen["candidates"][0]["profit"]["verdict"] == "pass"
    assert page.total("gate_gain_lost_total") == page.total("gate_gain_is_lost") == 1
    assert page.total("gate_speculates") == 0
    assert page.total("gate_live_gain") < 0.95 < page.total("gate_recorded_gain")
    line = lines(service, event="gates_gain_lost")[-1]
    assert (line["action"], line["method"], line["plain_windows"]) == ("stopped", "ngram", "recorded")

    # Measured again, it may run again.
    store.put(profit(key, ratios={1: 1.6}))
    until(lambda: speculates(ask(service)), holds=bool, within_s=5.0)
    assert all(reply["choices"] == plain["choices"] for reply in replies)
