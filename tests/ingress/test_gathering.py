"""Pages of many replicas become one that Prometheus can read."""

from prometheus_client.parser import text_string_to_metric_families

from deployments.ingress.counters import INGRESS_METRICS, Counters
from deployments.ingress.gathering import Gatherer
from deployments.messages.metrics import MetricKind, MetricSpec
from tests.ingress.fakes import RegistryMetrics

_SPECS = (
    MetricSpec(name="things", kind=MetricKind.COUNTER, help='Things, "quoted" \\ and\nbroken.', labels=("replica",)),
    MetricSpec(name="level", kind=MetricKind.GAUGE, help="A level.", labels=("replica",)),
    MetricSpec(name="took", kind=MetricKind.HISTOGRAM, help="Seconds.", labels=("replica",), buckets=(0.1, 1.0)),
)


def _page(replica: str, /) -> str:
    metrics = RegistryMetrics(_SPECS)
    metrics.add("things", amount=2.5, labels=(replica,))
    metrics.set("level", value=-1.0, labels=(replica,))
    metrics.observe("took", value=0.5, labels=(replica,))
    return metrics.exposition()


async def _pages(*pages: str) -> list[str]:
    return list(pages)


async def test_families_are_merged_and_no_sample_is_lost() -> None:
    metrics = RegistryMetrics(INGRESS_METRICS)
    gatherer = Gatherer(counters=Counters(metrics=metrics), timeout_s=1.0)
    odd = 'r"\\\n'
    page = (await gatherer.page({"a": _pages(_page("r1"), _page(odd)), "b": _pages(_page("r3"))})).decode()
    merged = {family.name: family for family in text_string_to_metric_families(page)}
    single = {family.name: family for family in text_string_to_metric_families(_page("r1"))}
    assert page.count("# TYPE outrider_things_total counter") == 1
    for name, family in single.items():
        assert (merged[name].type, merged[name].documentation) == (family.type, family.documentation)
        assert len(merged[name].samples) == 3 * len(family.samples)
        # `_created` holds the time, which differs from page to page.
        assert name.endswith("_created") or all(sample in merged[name].samples for sample in family.samples)
    assert {sample.labels["replica"] for sample in merged["outrider_level"].samples} == {"r1", odd, "r3"}


async def test_a_page_that_cannot_be_read_is_left_out_and_counted() -> None:
    metrics = RegistryMetrics(INGRESS_METRICS)
    gatherer = Gatherer(counters=Counters(metrics=metrics), timeout_s=1.0)
    clash = "# TYPE outrider_level counter\noutrider_level_total 3\n"
    sources = {"good": _pages(_page("r1")), "bad": _pages("what {is this", _page("r2")), "odd": _pages(clash)}
    page = (await gatherer.page(sources)).decode()
    assert 'replica="r1"' in page
    assert 'replica="r2"' in page
    assert metrics.value("ingress_gather_failures_total", source="bad") == 1
    assert metrics.value("ingress_gather_failures_total", source="odd") == 1
