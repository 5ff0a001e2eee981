"""From a model file to an engine that may serve: weights, cache, programs, probe. Slow, and says how far it is."""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from deployments.lm.cache.pages import CacheShape, PageAllocator
from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.models.llama.modeling import LlamaConfig
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import ConfigError
from deployments.messages.metrics import Metrics
from deployments.verifier.drafts import DraftSource
from deployments.verifier.engine import Engine, EngineSettings
from deployments.verifier.ladder import Ladder, build_ladder
from deployments.verifier.probe import ProbeReport, probe
from deployments.verifier.programs import Programs, Progress


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What to load and for what load.

    Attributes:
        context: the most tokens of prompt and reply together, per slot.
        draft_k: the most drafts per request and window; 0 compiles for plain decoding alone.
        ladder: row counts of the windows.
        compile_cache: a directory that keeps compiled programs; empty keeps none.
    """

    model_path: str
    precision: Precision = Precision.INT8
    slots: int = 8
    context: int = 2048
    page_size: int = 128
    draft_k: int = 3
    ladder: tuple[int, ...] = (8, 16, 32, 64, 128)
    compile_cache: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A network ready to serve on this device."""

    settings: ModelSettings
    config: LlamaConfig
    architecture: str
    name: str
    programs: Programs
    report: ProbeReport

    def engine(self, *, drafts: DraftSource, metrics: Metrics, ladder: Ladder | None = None) -> Engine:
        """An engine over these programs; only one at a time, since they share the cache."""
        self.programs.ladder = ladder or self.report.ladder
        settings = self.settings
        return Engine(
            EngineSettings(
                slots=settings.slots,
                context=settings.context,
                draft_k=settings.draft_k,
                page_size=settings.page_size,
            ),
            programs=self.programs,
            allocator=PageAllocator(self.programs.shape.pages, page_size=settings.page_size),
            drafts=drafts,
            vocabulary=self.config.vocabulary,
            metrics=metrics,
        )


def load_model(settings: ModelSettings, *, progress: Progress) -> LoadedModel:
    """Loads, compiles and proves.

    Raises:
        CheckpointError: the file cannot be served.
        ConfigError: the settings do not fit the model.
    """
    if settings.compile_cache:
        jax.config.update("jax_compilation_cache_dir", settings.compile_cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    started = time.perf_counter()
    file = GgufFile(Path(settings.model_path))
    progress(f"reading {file.path.name}")
    network = load_network(file, precision=settings.precision)
    settings = _fit(settings, config=network.config)
    slot_pages = settings.context // settings.page_size
    programs = Programs(
        network,
        ladder=build_ladder(settings.ladder, slots=settings.slots, draft_k=settings.draft_k),
        shape=CacheShape(
            layers=network.config.layers,
            # At least two and the scratch page: the probe runs beside a neighbour.
            pages=max(settings.slots * slot_pages, 2) + 1,
            page_size=settings.page_size,
            kv_heads=network.config.kv_heads,
            head_dim=network.config.head_dim,
        ),
        cache_dtype=settings.precision.cache_dtype,
        slot_pages=slot_pages,
        longest=max(settings.draft_k, 1),
        progress=progress,
    )
    report = probe(programs, vocabulary=network.config.vocabulary, progress=progress)
    for rung, reason in report.refused.items():
        progress(f"windows of {rung.rows} rows in {rung.tiles} tiles are not used: {reason}")
    progress(f"ready after {time.perf_counter() - started:.1f} s")
    return LoadedModel(
        settings=settings,
        config=network.config,
        architecture=file.require("general.architecture", str),
        name=file.get("general.name", str) or file.path.stem,
        programs=programs,
        report=report,
    )


def _fit(settings: ModelSettings, *, config: LlamaConfig) -> ModelSettings:
    if settings.slots < 1 or settings.context < 1 or settings.page_size < 1:
        raise ConfigError("slots, context and page_size must each be at least 1")
    if settings.context > config.context:
        raise ConfigError(
            f"a context of {settings.context} was asked for, but the model was made for {config.context}; lower --ctx"
        )
    page_size = min(settings.page_size, settings.context)
    if settings.context % page_size:
        raise ConfigError(f"context {settings.context} must be a multiple of the page size {page_size}")
    return replace(settings, page_size=page_size)


def to_stderr(event: str, /) -> Progress:
    """Progress as JSON lines on stderr."""

    def say(text: str) -> None:
        print(json.dumps({"event": event, "text": text}), file=sys.stderr, flush=True)

    return say


def say_speculation(kind: str | None, /, *, draft_k: int, reason: str, report: ProbeReport) -> None:
    """The start-up line: whether this verifier speculates, with what, and why; `kind` is `None` when it does not."""
    line = {
        "event": "speculation",
        "used": kind is not None,
        "method": kind,
        "draft_k": draft_k if kind else 0,
        "gated": False,
        "reason": reason,
        "message": "speculation: not gated on this chip" if kind else "speculation: off",
        "rungs": len(report.ladder.rungs),
        "refused_rungs": len(report.refused),
    }
    print(json.dumps(line), file=sys.stderr, flush=True)
