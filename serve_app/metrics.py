"""Metrics in Prometheus' format: the tables the rooms declare, turned into `prometheus_client` objects.

Every series carries `deployment`, `replica` and `chip`, so that the ingress can put the pages of all replicas together.
"""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from ray import serve
from ray.serve.exceptions import RayServeException

from deployments.messages.errors import ConfigError
from deployments.messages.metrics import MetricKind, Metrics, MetricSpec

_PREFIX = "outrider_"
_WHERE = ("deployment", "replica", "chip")

type _Family = Counter | Gauge | Histogram


class PrometheusMetrics:
    """A registry of its own per replica; nothing global.

    Args:
        specs: what may be counted; anything else is a `KeyError`, which is a mistake in the code.
        where: values of `deployment`, `replica` and `chip`.
    """

    def __init__(self, specs: tuple[MetricSpec, ...], *, where: tuple[str, str, str]) -> None:
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            raise ConfigError(f"a metric is declared twice among {sorted(names)}")
        self._registry = CollectorRegistry()
        self._where = where
        self._families = {spec.name: _family(spec, registry=self._registry) for spec in specs}
        # Looked up a dozen times per window; `labels` checks and joins its arguments each time.
        self._known: dict[tuple[str, tuple[str, ...]], _Family] = {}
        for spec in specs:
            if not spec.labels:
                self._series(spec.name, ())

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """Adds to a counter or a gauge."""
        series = self._series(name, labels)
        if isinstance(series, Histogram):
            raise TypeError(f"{name} is a histogram; observe it")
        series.inc(amount)

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Sets a gauge."""
        series = self._series(name, labels)
        if not isinstance(series, Gauge):
            raise TypeError(f"{name} is no gauge")
        series.set(value)

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        """Adds one observation to a histogram."""
        series = self._series(name, labels)
        if not isinstance(series, Histogram):
            raise TypeError(f"{name} is no histogram")
        series.observe(value)

    def exposition(self) -> str:
        """All series as text."""
        return generate_latest(self._registry).decode()

    def _series(self, name: str, labels: tuple[str, ...]) -> _Family:
        series = self._known.get((name, labels))
        if series is None:
            series = self._known[name, labels] = self._families[name].labels(*self._where, *labels)
        return series


@dataclass(frozen=True, kw_only=True)
class ReplicaMetrics:
    """A `MetricsFactory` that labels by the Serve replica it is called in."""

    chip: str = "cpu"
    outside: tuple[str, str] = field(default=("local", "local"))

    def __call__(self, specs: tuple[MetricSpec, ...], /) -> Metrics:
        deployment, replica = self.outside
        try:
            context = serve.get_replica_context()
            deployment, replica = context.deployment, context.replica_tag
        except RayServeException:
            pass
        return PrometheusMetrics(specs, where=(deployment, replica, self.chip))


def _family(spec: MetricSpec, *, registry: CollectorRegistry) -> _Family:
    name, labels = _PREFIX + spec.name, (*_WHERE, *spec.labels)
    match spec.kind:
        case MetricKind.COUNTER:
            return Counter(name, spec.help, labels, registry=registry)
        case MetricKind.GAUGE:
            return Gauge(name, spec.help, labels, registry=registry)
        case MetricKind.HISTOGRAM:
            return Histogram(name, spec.help, labels, registry=registry, buckets=spec.buckets)
