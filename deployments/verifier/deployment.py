"""The verifier as a deployment: wiring only. `serve_app` turns the class into one."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from deployments.messages.gates import GateReport
from deployments.messages.generation import GenerateRequest, ModelCard, TokenChunk
from deployments.messages.metrics import MetricsFactory
from deployments.messages.ports import Gatekeeper, Locate
from deployments.verifier.counters import ENGINE_METRICS
from deployments.verifier.discovery import keep_discovering
from deployments.verifier.gate_counters import GATE_METRICS, GateGauges
from deployments.verifier.gating import say_speculation
from deployments.verifier.link_counters import LINK_COUNTERS
from deployments.verifier.links import DrafterLinks
from deployments.verifier.live_gain import LiveGains
from deployments.verifier.loading import load_model, to_stderr
from deployments.verifier.pacing import Pacer
from deployments.verifier.profiling import Profiler
from deployments.verifier.remote import RemoteDrafts
from deployments.verifier.runner import EngineRunner
from deployments.verifier.settings import VerifierSettings
from deployments.verifier.watching import watch_programs


class VerifierServer:
    """One verifier replica: one network on one device.

    Args:
        drafter: a handle of the drafter deployment; `None` when nothing drafts.
        gatekeeper: says whether and how much may be drafted.
    """

    def __init__(
        self,
        *,
        settings: VerifierSettings,
        locate: Locate,
        drafter: Any | None,
        gatekeeper: Gatekeeper,
        metrics: MetricsFactory,
    ) -> None:
        self._settings = settings
        self._metrics = metrics((*ENGINE_METRICS, *LINK_COUNTERS, *GATE_METRICS))
        self._created = int(time.time())
        model = replace(settings.model, model_path=str(locate(settings.model.model_path)))
        self._loaded = loaded = load_model(model, progress=to_stderr("loading"))
        self._links: DrafterLinks | None = None
        if drafter is not None and settings.model.draft_k > 0:
            told = settings.links(verifier=f"verifier-{self._created}", vocabulary=loaded.config.vocabulary)
            self._links = DrafterLinks(settings=told, metrics=self._metrics)
        drafts = RemoteDrafts(self._links) if self._links else loaded.chip_drafts()
        self._watch = gatekeeper(loaded.facts())
        self._gauges = GateGauges(self._watch, metrics=self._metrics, slots=settings.model.slots)
        engine = loaded.engine(drafts=drafts, metrics=self._metrics, rules=lambda: self._watch.rule, on_chip=True)
        engine.watch_windows(LiveGains(self._watch, span=settings.gain_span).landed)
        self._profiler = Profiler()
        self._drafter = drafter
        watch_programs(loaded.report, metrics=self._metrics)
        most, pace = settings.model.slots + settings.max_queue, Pacer(interval_s=settings.stream_interval_s)
        self._runner = EngineRunner(engine, most_streams=most, metrics=self._metrics, pacer=pace)
        self._starting = asyncio.Lock()
        self._is_started = False
        self._discovery: asyncio.Task[None] | None = None
        say_speculation(self._watch.report().rule, draft_k=settings.model.draft_k, report=loaded.report)

    async def generate(self, request: GenerateRequest, /) -> AsyncGenerator[TokenChunk]:
        """Streams a reply; see `VerifierPort`."""
        await self._start()
        async for chunk in self._runner.generate(request):
            yield chunk

    async def card(self) -> ModelCard:
        """What is served here."""
        await self._start()
        model = self._loaded.settings
        return ModelCard(
            model=self._settings.served_model or self._loaded.name,
            architecture=self._loaded.architecture,
            precision=model.precision.value,
            context=model.context,
            slots=model.slots,
            created=self._created,
            draft_kind=self._watch.rule.kind,
            max_draft=model.draft_k if self._links or model.chip else 0,
        )

    async def gates(self) -> GateReport:
        """What the gates say about this replica."""
        return self._watch.report()

    async def profile(self, seconds: float, /) -> bytes:
        """A trace of this replica at work; see `VerifierPort`."""
        return await self._profiler.trace(seconds=seconds)

    async def metrics(self) -> str:
        self._gauges.refresh()
        return self._metrics.exposition()

    async def check_health(self) -> None:
        """Starts the engine when Serve first asks; raises once its thread has died, so that Serve replaces it."""
        await self._start()
        if not self._runner.is_running:
            raise RuntimeError("the engine's thread has ended")

    async def _start(self) -> None:
        async with self._starting:
            if self._is_started:
                return
            self._is_started = True
            self._runner.start()
            if self._links is not None:
                self._discovery = asyncio.create_task(keep_discovering(self._drafter, links=self._links))
