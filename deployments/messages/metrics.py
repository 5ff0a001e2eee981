"""How a room declares what it counts. The room holds a table of `MetricSpec`; who exports them is decided outside."""

from enum import StrEnum
from typing import Protocol

import msgspec


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. `name` is without the `outrider_` prefix and without a counter's `_total`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Metrics(Protocol):
    """Where a room puts its numbers. Called from any thread; never raises for a declared metric."""

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """Adds to a counter, or to a gauge."""

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Sets a gauge."""

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Adds one observation to a histogram."""

    def exposition(self) -> str:
        """All of them in Prometheus' text format."""


class MetricsFactory(Protocol):
    """Makes the `Metrics` of one replica; passed in by `build` and pickled to the replica."""

    def __call__(self, specs: tuple[MetricSpec, ...], /) -> Metrics: ...
