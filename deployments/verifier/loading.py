"""From a model file to an engine that may serve: weights, cache, programs, probe. Slow, and says how far it is."""

import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from flax import nnx

from deployments.lm.cache.layout import CacheShape
from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.lm.checkpoint.fingerprint import fingerprint
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.decoder import Decoder, DecoderConfig
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels, described
from deployments.lm.models.assembly import is_beside_text
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import ConfigError
from deployments.messages.gates import ProgramFacts
from deployments.messages.metrics import Metrics
from deployments.verifier.asking import Rules
from deployments.verifier.blueprint import Blueprint, Sizes
from deployments.verifier.drafts import DraftSource
from deployments.verifier.engine import Engine, EngineSettings
from deployments.verifier.ladder import Ladder, build_ladder
from deployments.verifier.memory import MemoryPlan, check_weights, free_host_memory
from deployments.verifier.probe import ProbeReport, probe
from deployments.verifier.programs import Programs, Progress
from deployments.verifier.states import StateRoom, States


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What to load and for what load.

    Attributes:
        context: the most tokens of prompt and reply together, per slot.
        draft_k: the most drafts per request and window; 0 compiles for plain decoding alone.
        draft_rows: the most drafts of a window; `None` sets no limit.
        ladder: row counts of the windows.
        kernels: which kernels the network is built with.
        compile_cache: a directory that keeps compiled programs; empty keeps none, and native kernels elsewhere.
        cache_pages: pages of the cache; `None` takes as many as all slots can fill.
        prefix_cache: whether pages are found by their content and shared.
        kept_states: states of recurrent layers that are kept to be found again; `None` keeps one per slot.
        reserve_tokens, prefill_budget, priority_step_s: as in `batch.Limits`.
    """

    model_path: str
    precision: Precision = Precision.INT8
    kernels: Kernels = Kernels.AUTO
    slots: int = 8
    context: int = 2048
    page_size: int = 64
    draft_k: int = 3
    draft_rows: int | None = None
    ladder: tuple[int, ...] = (8, 16, 32, 64, 128)
    compile_cache: str = ""
    cache_pages: int | None = None
    prefix_cache: bool = True
    kept_states: int | None = None
    reserve_tokens: int = 256
    prefill_budget: int = 32
    priority_step_s: float = 10.0

    @property
    def slot_pages(self) -> int:
        """Pages of one request that fills its context."""
        return self.context // self.page_size

    @property
    def pages(self) -> int:
        """Pages of the cache, without the scratch page."""
        return self.slots * self.slot_pages if self.cache_pages is None else self.cache_pages


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A network ready to serve on this device.

    Attributes:
        kernels: what `ModelSettings.kernels` came to.
        fingerprint: of the model's files; see `checkpoint.fingerprint`.
        files: the model's, all of them, in an order that does not change.
    """

    settings: ModelSettings
    config: DecoderConfig
    architecture: str
    name: str
    kernels: Kernels
    programs: Programs
    report: ProbeReport
    fingerprint: str
    files: tuple[Path, ...]

    def facts(self) -> ProgramFacts:
        """What decides which bits these programs compute, for the gates."""
        settings, device = self.settings, jax.devices()[0]
        most = settings.slots * settings.draft_k
        return ProgramFacts(
            platform=device.platform,
            device_kind=device.device_kind,
            model_files=tuple(str(path.absolute()) for path in self.files),
            architecture=self.architecture,
            precision=settings.precision.value,
            kernels=described(self.kernels),
            page_size=settings.page_size,
            context=settings.context,
            cache_pages=settings.pages,
            ladder=settings.ladder,
            slots=settings.slots,
            draft_k=settings.draft_k,
            draft_rows=most if settings.draft_rows is None else min(most, settings.draft_rows),
            programs=self.programs.fingerprint,
        )

    def engine(
        self, *, drafts: DraftSource, metrics: Metrics, ladder: Ladder | None = None, rules: Rules | None = None
    ) -> Engine:
        """An engine over these programs; only one at a time, since they share the cache."""
        self.programs.ladder = ladder or self.report.ladder
        settings = self.settings
        allocator = PageAllocator(min(settings.pages + 1, self.programs.shape.pages), page_size=settings.page_size)
        room = self.programs.room
        root = f"{self.fingerprint} {settings.precision} {self.kernels} {settings.page_size}".encode()
        return Engine(
            EngineSettings(
                slots=settings.slots,
                context=settings.context,
                draft_k=settings.draft_k,
                draft_rows=settings.draft_rows,
                page_size=settings.page_size,
                reserve_tokens=settings.reserve_tokens,
                prefill_budget=settings.prefill_budget,
                priority_step_s=settings.priority_step_s,
            ),
            programs=self.programs,
            allocator=allocator,
            prefix=PrefixCache(allocator, root=root) if settings.prefix_cache else None,
            states=None if room is None else States(room, page_size=settings.page_size),
            drafts=drafts,
            vocabulary=self.config.vocabulary,
            metrics=metrics,
            rules=rules,
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
    free = _free_memory()
    checkpoint = open_checkpoint(settings.model_path)
    progress(f"reading {checkpoint.name}")
    check_weights(_least_weights(checkpoint, precision=settings.precision), free=free)
    kernels, reason = choose_kernels(settings.kernels, cache=_kernel_cache(settings))
    progress(f"kernels: {kernels.value} ({reason})")
    network = load_network(checkpoint, precision=settings.precision, kernels=kernels)
    progress(f"weights: {settings.precision.value}")
    settings = _fit(settings, config=network.config)
    room = _state_room(settings, config=network.config)
    shape = _cache_shape(settings, config=network.config, room=room)
    plan = _memory_plan(network, shape=shape, settings=settings, free=free)
    plan.check()
    sizes = Sizes(
        ladder=build_ladder(
            settings.ladder, slots=settings.slots, draft_k=settings.draft_k, draft_rows=settings.draft_rows
        ),
        shape=shape,
        cache_dtype=settings.precision.cache_dtype,
        slots=settings.slots,
        slot_pages=settings.slot_pages,
        longest=max(settings.draft_k, 1),
        room=room,
    )
    programs = Programs(Blueprint(network, sizes=sizes), progress=progress)
    plan = replace(plan, temporaries=programs.temporaries)
    plan.check()
    progress(f"memory: {plan}")
    report = probe(programs, vocabulary=network.config.vocabulary, progress=progress)
    for rung, reason in report.refused.items():
        progress(f"windows of {rung.rows} rows in {rung.tiles} tiles are not used: {reason}")
    progress(f"ready after {time.perf_counter() - started:.1f} s")
    return LoadedModel(
        settings=settings,
        config=network.config,
        architecture=network.config.architecture,
        name=_model_name(checkpoint),
        kernels=kernels,
        programs=programs,
        report=report,
        fingerprint=fingerprint(*checkpoint.files),
        files=checkpoint.files,
    )


def _kernel_cache(settings: ModelSettings) -> Path:
    return Path(settings.compile_cache or Path.home() / ".cache" / "outrider") / "kernels"


def _free_memory() -> int | None:
    """Bytes the device has left; on CPU, the machine."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return free_host_memory()
    counted = device.memory_stats()
    return counted["bytes_limit"] - counted["bytes_in_use"] if counted else None


def _model_name(checkpoint: Checkpoint) -> str:
    """What the checkpoint calls itself; config.json has no such name, but its folder does."""
    if checkpoint.format is Format.GGUF:
        return checkpoint.get("general.name", str) or checkpoint.files[0].stem
    return checkpoint.files[0].absolute().parent.name


def _least_weights(checkpoint: Checkpoint, *, precision: Precision) -> int:
    """Bytes the matrices take once they are loaded, as far as the header tells."""
    is_int8 = precision in (Precision.INT8, Precision.INT8_PLAIN)
    each = 1 if is_int8 else precision.embedding_dtype.itemsize
    loaded = (shape for name, shape in checkpoint.shapes.items() if not is_beside_text(name))
    return each * sum(math.prod(shape) for shape in loaded)


def _state_room(settings: ModelSettings, *, config: DecoderConfig) -> StateRoom | None:
    if not config.is_recurrent:
        return None
    kept = settings.slots if settings.kept_states is None else settings.kept_states
    # At least two: the probe runs beside a neighbour.
    slots = max(settings.slots, 2)
    return StateRoom(slots=slots, drafts=settings.draft_k, kept=kept if settings.prefix_cache else 0)


def _cache_shape(settings: ModelSettings, *, config: DecoderConfig, room: StateRoom | None) -> CacheShape:
    return CacheShape(
        layout=config.layout,
        # At least two and the scratch page: the probe runs beside a neighbour.
        pages=max(settings.pages, 2) + 1,
        page_size=settings.page_size,
        states=0 if room is None else room.states,
        pending=0 if room is None else room.pending,
    )


def _memory_plan(network: Decoder, *, shape: CacheShape, settings: ModelSettings, free: int | None) -> MemoryPlan:
    return MemoryPlan(
        # A table that is embedding and head lies there once.
        weights=sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(nnx.state(network))}.values()),
        page=shape.page_nbytes(settings.precision.cache_dtype),
        pages=shape.pages,
        states=shape.state_nbytes,
        least_pages=max(settings.slot_pages, 2) + 1,
        temporaries=0,
        free=free,
    )


def _fit(settings: ModelSettings, *, config: DecoderConfig) -> ModelSettings:
    if settings.slots < 1 or settings.context < 1 or settings.page_size < 1:
        raise ConfigError("slots, context and page_size must each be at least 1")
    if settings.context > config.context:
        raise ConfigError(
            f"a context of {settings.context} was asked for, but the model was made for {config.context}; lower --ctx"
        )
    page_size = min(settings.page_size, settings.context)
    if settings.context % page_size:
        raise ConfigError(f"context {settings.context} must be a multiple of the page size {page_size}")
    settings = replace(settings, page_size=page_size)
    if settings.pages < settings.slot_pages:
        raise ConfigError(
            f"cache_pages {settings.pages} hold {settings.pages * page_size} tokens, less than one context of "
            f"{settings.context}; set at least {settings.slot_pages}, or lower --ctx"
        )
    return settings


def to_stderr(event: str, /) -> Progress:
    """Progress as JSON lines on stderr."""

    def say(text: str) -> None:
        print(json.dumps({"event": event, "text": text}), file=sys.stderr, flush=True)

    return say
