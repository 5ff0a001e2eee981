"""A running service with gates: what is asked of it, and clients that keep asking while its store changes."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from serve_app.config import AppConfig
from serve_app.gating.keys import ProfitKey
from serve_app.local import Service
from tests.graph.stage import until

IN_FORCE_S = 2.0
# It loses from four active slots on.
RATIOS = {1: 1.6, 3: 1.3, 4: 0.9}
ADMIN = {"Authorization": "Bearer operator"}


def gated_config(model: Path, /, *, store: str, folder: Path, replicas: int = 1) -> AppConfig:
    """An application with `auto`, whose operator's key lies in `folder`."""
    (folder / "admin").write_text("operator\n")
    return AppConfig.model_validate(
        {
            "model": str(model),
            "drafter": {"kind": "auto"},
            # A late draft would look like one that was not allowed.
            "verifier": {"precision": "f32", "context": 512, "draft_deadline_ms": 100, "replicas": replicas},
            "ingress": {"admin_keys_file": str(folder / "admin")},
            "gates": {"store": store},
        }
    )


def ask(service: Service) -> dict[str, Any]:
    body = {"model": service.model, "prompt": [7, 8, 9, 10] * 8, "max_tokens": 60, "temperature": 0, "logprobs": 0}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def speculates(reply: dict[str, Any]) -> bool:
    return bool(reply["timings"].get("draft_kind") == "ngram")


def declined(reply: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = reply["metrics"]["speculative_decoding"]["declined"]
    return found


def all_gates(service: Service) -> list[dict[str, Any]]:
    """What each replica of the verifier says."""
    answer = httpx.get(f"{service.url}/admin/gates", headers=ADMIN, timeout=30.0)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def gates(service: Service) -> dict[str, Any]:
    """What the only replica says."""
    (replica,) = all_gates(service)
    return replica


def running_key(service: Service) -> ProfitKey:
    """What a record must be for, to apply to this service."""
    (candidate,) = all_gates(service)[0]["candidates"]
    return msgspec.convert(candidate["key"], ProfitKey)


def in_force(act: Callable[[], object], *, when: Callable[[], bool]) -> None:
    """Acts, and waits no longer than a change may take."""
    act()
    until(when, holds=bool, within_s=IN_FORCE_S)


@dataclass(kw_only=True)
class Load:
    """Clients that ask the same all the time."""

    replies: list[tuple[int, str]] = field(default_factory=list)

    def check(self) -> None:
        assert len(self.replies) > 5
        assert {status for status, _ in self.replies} == {200}
        assert len({text for _, text in self.replies}) == 1


@contextmanager
def under_load(service: Service) -> Iterator[Load]:
    load, over = Load(), threading.Event()

    def keep_asking() -> None:
        body = {"model": service.model, "prompt": [3, 4, 5] * 6, "max_tokens": 40, "temperature": 1, "seed": 3}
        with httpx.Client(timeout=60.0) as client:
            while not over.is_set():
                answer = client.post(f"{service.url}/v1/completions", json=body)
                shown = answer.json()
                load.replies.append((answer.status_code, json.dumps(shown.get("choices", shown))))

    clients = [threading.Thread(target=keep_asking) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield load
    finally:
        over.set()
        for client in clients:
            client.join()


def lines(service: Service, *, event: str) -> list[dict[str, Any]]:
    """What replicas have said, those of services that ran before in the same cluster first."""
    logs = sorted(service.logs.glob("worker-*.err"), key=lambda log: log.stat().st_mtime_ns)
    printed = [line for log in logs for line in log.read_text().splitlines()]
    return [json.loads(text) for text in printed if f'"event": "{event}"' in text]
