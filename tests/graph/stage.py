"""One cluster with one application at a time, and what tests of it look at again and again."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from deployments.ingress.clients import TokenizerClient, VerifierClient
from serve_app.config import AppConfig
from serve_app.local import APP, Cluster, Service, cluster

type Labels = frozenset[tuple[str, str]]


class Stage:
    """Keeps the last application running until another one is asked for."""

    def __init__(self, machine: Cluster, /) -> None:
        self._machine = machine
        self._stack = ExitStack()
        self._config: AppConfig | None = None
        self._service: Service | None = None

    def service(self, config: AppConfig, /) -> Service:
        if self._service is None or config != self._config:
            self.clear()
            self._service = self._stack.enter_context(self._machine.runs(config))
            self._config = config
        return self._service

    def clear(self) -> None:
        self._service = None
        self._stack.close()


def app_config(model: Path, /, *, drafter: dict[str, Any], **verifier: Any) -> AppConfig:
    """An application that asks no gates."""
    return AppConfig.model_validate(
        {"model": str(model), "drafter": drafter, "verifier": verifier, "gates": {"store": ""}}
    )


def verifier_client() -> VerifierClient:
    """Made anew for each event loop."""
    return VerifierClient(serve.get_deployment_handle("verifier", APP))


def tokenizer_client() -> TokenizerClient:
    return TokenizerClient(serve.get_deployment_handle("tokenizer", APP))


@dataclass(frozen=True, kw_only=True)
class Page:
    """One reading of `/metrics`."""

    samples: dict[str, list[tuple[dict[str, str], float]]]

    def total(self, name: str, /, **labels: str) -> float:
        """The sum over all series of this name that carry these labels; 0 when there are none yet."""
        rows = self.samples.get(f"outrider_{name}", [])
        return sum(value for given, value in rows if labels.items() <= given.items())


def metrics(url: str, /) -> Page:
    answer = httpx.get(f"{url}/metrics", timeout=30.0)
    assert answer.status_code == 200, answer.text
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return Page(samples=samples)


LOAD_GAUGES = ("active_slots", "waiting_requests", "pages_in_use", "open_streams", "ingress_in_flight")


def idle(page: Page, /) -> bool:
    return all(page.total(name) == 0 for name in LOAD_GAUGES)


def until[T](look: Callable[[], T], /, *, holds: Callable[[T], bool], within_s: float) -> T:
    """What `look` sees once it `holds`."""
    deadline = time.monotonic() + within_s
    while not holds(seen := look()):
        assert time.monotonic() < deadline, f"not within {within_s} s; the last look saw {seen}"
        time.sleep(0.05)
    return seen


def replica_pids(deployment: str, /) -> set[int]:
    """The processes of a deployment's replicas in this test's own cluster."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    parents = {int(pid): int(parent) for pid, parent, *_ in rows}
    found = {int(pid) for pid, _, *args in rows if f"ServeReplica:{APP}:{deployment}" in " ".join(args)}
    return {pid for pid in found if parents.get(parents[pid]) == os.getpid()}


@contextmanager
def stage() -> Iterator[Stage]:
    with cluster(quiet=True) as machine:
        made = Stage(machine)
        try:
            yield made
        finally:
            made.clear()
