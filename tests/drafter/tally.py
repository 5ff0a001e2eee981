"""Counts kept in memory, in place of an exporter."""

import threading
from collections import Counter

from deployments.messages.metrics import MetricSpec


class Tally:
    """The `Metrics` of a test: every number by name, labels appended."""

    def __init__(self, specs: tuple[MetricSpec, ...], /) -> None:
        self._labels = {spec.name: spec.labels for spec in specs}
        self.values: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        with self._lock:
            self.values[self._key(name, labels)] += int(amount)

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        self.values[self._key(name, labels)] = int(value)

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        assert value >= 0
        with self._lock:
            self.values[self._key(name, labels)] += 1

    def exposition(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in sorted(self.values.items()))

    def _key(self, name: str, labels: tuple[str, ...]) -> str:
        assert len(self._labels[name]) == len(labels)
        return ":".join((name, *labels))
