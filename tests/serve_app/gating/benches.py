"""Stores to test, each with the ways in which its world can go wrong."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import redis

from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.store import Change, GateStore, StoreState
from tests.serve_app.gating.redis_server import RedisServer

HASH = "outrider:gates:1"


class Bench(Protocol):
    """A place for gates, and what may happen to it.

    Attributes:
        applies_in_s: how soon a watcher must have a change.
    """

    url: str
    applies_in_s: float

    def spoil(self, text: str, /) -> None:
        """Puts something in that makes no sense."""

    def mend(self) -> None:
        """Takes it out again."""

    def delete(self) -> None:
        """Takes everything away."""

    def cut_off(self) -> None:
        """Makes it unreachable, and what it holds with it."""

    def bring_back(self) -> None:
        """Undoes `cut_off`."""


class FileBench:
    """A file in a folder of its own."""

    applies_in_s = 2.0

    def __init__(self, folder: Path, /) -> None:
        self.path = folder / "gates.yaml"
        self.url = f"file:{self.path}"
        self._kept = b""

    def spoil(self, text: str, /) -> None:
        if not self._kept:
            self._kept = self.path.read_bytes()
        self.path.write_text(f"schema: 1\n{text}: [")

    def mend(self) -> None:
        self.path.write_bytes(self._kept)

    def delete(self) -> None:
        self.path.unlink()

    def cut_off(self) -> None:
        self.path.rename(self.path.with_suffix(".away"))
        self.path.mkdir()

    def bring_back(self) -> None:
        self.path.rmdir()
        self.path.with_suffix(".away").rename(self.path)


class RedisBench:
    """A server that keeps what it is told, also when it is killed."""

    applies_in_s = 0.2

    def __init__(self, server: RedisServer, /) -> None:
        self._server = server
        self.url = server.url

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis(host="127.0.0.1", port=self._server.port, protocol=2)

    def spoil(self, text: str, /) -> None:
        with self.client as client:
            client.hset(HASH, "exactness:0123456789abcdef", f"{text}: [")
            client.publish(f"{HASH}:changes", "changed")

    def mend(self) -> None:
        with self.client as client:
            client.hdel(HASH, "exactness:0123456789abcdef")
            client.publish(f"{HASH}:changes", "changed")

    def delete(self) -> None:
        with self.client as client:
            client.flushall()
            client.publish(f"{HASH}:changes", "changed")

    def cut_off(self) -> None:
        self._server.stop()

    def bring_back(self) -> None:
        self._server.start()


def opened(bench: Bench, /) -> GateStore:
    return open_store(StoreSettings(url=bench.url))


class Heard:
    """Changes that a store told, and when."""

    def __init__(self) -> None:
        self.changes: list[tuple[float, Change]] = []

    def __call__(self, change: Change, /) -> None:
        self.changes.append((time.monotonic(), change))

    def has(self, count: int, /) -> Callable[[], bool]:
        return lambda: len(self.changes) == count

    @property
    def last(self) -> Change:
        return self.changes[-1][1]


def eventually(holds: Callable[[], bool], /, *, within_s: float = 20.0) -> None:
    """Waits until something holds."""
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)


def counted(store: GateStore, /, **counts: float | StoreState) -> Callable[[], bool]:
    """Whether the store has come to these numbers of its status."""
    return lambda: all(getattr(store.status(), name) == count for name, count in counts.items())
