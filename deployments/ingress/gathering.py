"""One Prometheus page for the whole graph: every replica's exposition, merged family by family.

Labels are the replicas' own business (`deployment`, `replica`, `chip` are in each page already).
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from deployments.ingress.counters import Counters


class Gatherer:
    """Collects pages from the other deployments; one that is late or broken is left out and counted."""

    def __init__(self, *, counters: Counters, timeout_s: float) -> None:
        self._counters = counters
        self._timeout_s = timeout_s

    async def page(self, sources: Mapping[str, Awaitable[list[str]]], /) -> bytes:
        """The merged page of `sources` (their name to their pages)."""
        answers = await asyncio.gather(*(self._pages(name, source=source) for name, source in sources.items()))
        families: dict[str, Metric] = {}
        for name, pages in zip(sources, answers, strict=True):
            for page in pages:
                self._merge(page, into=families, source=name)
        return generate_latest(_Merged(families=families.values()))

    async def _pages(self, name: str, /, *, source: Awaitable[list[str]]) -> list[str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await source
        except Exception:
            # Whatever ails another deployment, the rest of the page is wanted all the more.
            self._counters.gather_failed(name)
            return []

    def _merge(self, page: str, /, *, into: dict[str, Metric], source: str) -> None:
        try:
            families = list(text_string_to_metric_families(page))
        except ValueError:
            self._counters.gather_failed(source)
            return
        for family in families:
            known = into.setdefault(family.name, family)
            if known is family:
                continue
            if known.type == family.type:
                known.samples.extend(family.samples)
            else:
                self._counters.gather_failed(source)


class _Merged(Collector):
    """Families in the shape `generate_latest` reads."""

    def __init__(self, *, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
