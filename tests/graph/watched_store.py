"""A service whose replicas watch a store, as an operator sees both: pages, metrics, commands, and how long it takes."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.records import Record
from serve_app.gating.store import GateStore
from serve_app.local import Service
from tests.graph.gating_service import IN_FORCE_S, RATIOS, all_gates, ask, running_key, speculates
from tests.graph.stage import Page, metrics, until
from tests.serve_app.gating.making import exactness, profit

REPLICAS = 2
# The longest a replica takes to find out about its store: a Redis that hangs is looked at every 5 s, for 2 s.
TROUBLE_S = 20.0

type Replica = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A service and its store, as an operator sees both."""

    service: Service
    url: str

    def store(self) -> GateStore:
        return open_store(StoreSettings(url=self.url))

    def records(self) -> tuple[Record, Record]:
        """What lets this service speculate."""
        key = running_key(self.service)
        return exactness(key.program), profit(key, ratios=RATIOS)

    def within(self, within_s: float, holds: Callable[[Replica], bool], /) -> list[Replica]:
        """What all replicas say once it holds for each of them."""
        return until(
            lambda: all_gates(self.service),
            holds=lambda seen: len(seen) == REPLICAS and all(map(holds, seen)),
            within_s=within_s,
        )

    def found(self, state: str, /) -> list[Replica]:
        """What all replicas say once they found their store so."""
        return self.within(TROUBLE_S, lambda replica: replica["store"]["state"] == state)

    def counts(self, **counts: float) -> Page:
        """The metrics, once they are this much for each replica together."""
        return until(
            lambda: metrics(self.service.url),
            holds=lambda page: all(
                page.total(f"gate_store_{name}_total") == REPLICAS * count for name, count in counts.items()
            ),
            within_s=TROUBLE_S,
        )

    def still_speculates(self, revision: int, /) -> None:
        self.within(TROUBLE_S, lambda replica: is_settled(replica) and replica["revision"] == revision)
        assert speculates(ask(self.service))


def is_settled(replica: Replica) -> bool:
    return bool(replica["gated"]) and replica["state"] == "settled" and replica["stop_above"] == 3


def is_off(replica: Replica) -> bool:
    return replica["reason"] == "disabled_by_operator" and replica["kind"] is None


def has_revision(revision: int, /) -> Callable[[Replica], bool]:
    return lambda replica: replica["revision"] == replica["store"]["revision"] == revision


def gate(*words: str, url: str) -> "subprocess.Popen[str]":
    """`outrider gate`, as another process."""
    command = [sys.executable, "-m", "serve_app.cli", "gate", *words, "--kind", "ngram", "--store", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def force_off(url: str) -> "subprocess.Popen[str]":
    return gate("force", "off", "--why", "a test", "--by", "alice", url=url)


def done(command: "subprocess.Popen[str]") -> None:
    told = command.communicate(timeout=120)
    assert command.returncode == 0, told


def refusal(command: "subprocess.Popen[str]") -> str:
    """The one sentence of a command that could not write."""
    out, err = command.communicate(timeout=120)
    assert (command.returncode, out) == (1, ""), (out, err)
    (sentence,) = err.splitlines()
    return sentence


def change(
    watched: Watched, act: Callable[[], object], *, revision: int, holds: Callable[[Replica], bool]
) -> tuple[float, float]:
    """Seconds from before the write until the last replica had it, by its own clock, and until the page showed it."""
    began = time.time()
    act()
    seen = watched.within(IN_FORCE_S, lambda replica: has_revision(revision)(replica) and holds(replica))
    shown = time.time()
    applied = max(datetime.fromisoformat(replica["store"]["changed_at"]).timestamp() for replica in seen)
    return applied - began, shown - began
