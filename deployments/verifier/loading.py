"""From a model file to an engine that may serve: weights, cache, programs, probe. Slow, and says how far it is."""

import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.lm.checkpoint.fingerprint import fingerprint
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.decoder import DecoderConfig
from deployments.lm.drafting.ngram import NgramStrategy
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels, described
from deployments.lm.mesh import topology_of
from deployments.lm.models.assembly import is_beside_text
from deployments.lm.quant.linear import Precision
from deployments.messages.gates import ProgramFacts
from deployments.messages.metrics import Metrics
from deployments.verifier.asking import Rules
from deployments.verifier.blueprint import Blueprint, Sizes
from deployments.verifier.calls import ChipSettings
from deployments.verifier.drafts import DraftSource, NoDrafts
from deployments.verifier.engine import Engine, EngineSettings
from deployments.verifier.ladder import Ladder
from deployments.verifier.memory import MemoryPlan, check_weights, free_host_memory
from deployments.verifier.onboard import OnboardDrafts
from deployments.verifier.probe import ProbeReport, probe
from deployments.verifier.programs import Programs, Progress
from deployments.verifier.round_proof import refused_calls
from deployments.verifier.sizing import ModelSettings, fitted, sizes_for
from deployments.verifier.spreading import Spread, free_memory, load_spread, wanted_kernels
from deployments.verifier.states import States


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
            devices=settings.tensor_parallel,
            topology=topology_of(self.programs.mesh),
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

    def chip_drafts(self) -> DraftSource:
        """What the drafter of `settings.chip` drafts, for windows of their own; nothing without one."""
        if self.settings.chip is None or not self.settings.draft_k:
            return NoDrafts()
        return OnboardDrafts(NgramStrategy(self.settings.chip.drafter))

    def engine(
        self,
        *,
        drafts: DraftSource,
        metrics: Metrics,
        ladder: Ladder | None = None,
        rules: Rules | None = None,
        on_chip: bool = False,
    ) -> Engine:
        """An engine over these programs; only one at a time, since they share the cache.

        Args:
            on_chip: the device may draft as well, as `chip_drafts` do; where there is a drafter for it.
        """
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
                rounds=settings.chip.rounds if on_chip and settings.chip is not None else 0,
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
    devices = settings.tensor_parallel
    free = free_memory(devices)
    checkpoint = open_checkpoint(settings.model_path)
    progress(f"reading {checkpoint.name}")
    check_weights(_least_weights(checkpoint, precision=settings.precision) // devices, free=free)
    if devices > 1 and jax.default_backend() != "cpu":
        # The network is taken apart in the host's memory.
        check_weights(_least_weights(checkpoint, precision=settings.precision), free=free_host_memory())
    wanted = wanted_kernels(settings.kernels, devices=devices)
    kernels, reason = choose_kernels(wanted, cache=_kernel_cache(settings))
    progress(f"kernels: {kernels.value} ({reason})")
    spread = load_spread(checkpoint, precision=settings.precision, kernels=kernels, devices=devices)
    network = spread.network
    progress(f"weights: {settings.precision.value}" + (f" on {devices} devices" if devices > 1 else ""))
    settings = fitted(settings, config=network.config)
    sizes = sizes_for(replace(settings, kernels=kernels), config=network.config)
    plan = _memory_plan(spread, sizes=sizes, devices=devices, free=free)
    plan.check()
    programs = Programs(Blueprint(network, sizes=sizes, mesh=spread.mesh), progress=progress)
    plan = replace(plan, temporaries=programs.temporaries)
    plan.check()
    progress(f"memory: {plan}")
    report = _proved(programs, vocabulary=network.config.vocabulary, chip=settings.chip, progress=progress)
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


def _proved(programs: Programs, *, vocabulary: int, chip: ChipSettings | None, progress: Progress) -> ProbeReport:
    report = probe(programs, vocabulary=vocabulary, progress=progress)
    if chip is None:
        return report
    if not programs.calls:
        progress("windows are not joined into calls: the host keeps this model's states, or nothing is drafted")
        return report
    # A call of windows that may not serve alone may not serve either.
    programs.calls = tuple(size for size in programs.calls if size.rung in report.ladder.rungs)
    refused = refused_calls(programs, drafter=chip.drafter, vocabulary=vocabulary, progress=progress)
    for size, reason in refused.items():
        progress(f"windows of {size.rung.rows} rows are not joined into calls: {reason}")
    programs.calls = tuple(size for size in programs.calls if size not in refused)
    return replace(report, refused_calls=refused)


def _kernel_cache(settings: ModelSettings) -> Path:
    return Path(settings.compile_cache or Path.home() / ".cache" / "outrider") / "kernels"


def _model_name(checkpoint: Checkpoint) -> str:
    """What the checkpoint calls itself; config.json has no such name, but its folder does."""
    if checkpoint.format is Format.GGUF:
        return checkpoint.get("general.name", str) or checkpoint.files[0].stem
    return checkpoint.files[0].absolute().parent.name


def _least_weights(checkpoint: Checkpoint, *, precision: Precision) -> int:
    """Bytes the matrices take once they are loaded, as far as the header tells."""
    each = 1 if precision.has_int8_weights else precision.embedding_dtype.itemsize
    loaded = (shape for name, shape in checkpoint.shapes.items() if not is_beside_text(name))
    return each * sum(math.prod(shape) for shape in loaded)


def _memory_plan(spread: Spread, *, sizes: Sizes, devices: int, free: int | None) -> MemoryPlan:
    """What each device takes."""
    shape = sizes.shape
    return MemoryPlan(
        weights=spread.weights_nbytes,
        page=shape.page_nbytes(sizes.cache_dtype) // devices,
        pages=shape.pages,
        states=shape.state_nbytes // devices,
        least_pages=max(sizes.slot_pages, 2) + 1,
        temporaries=0,
        free=free,
    )


def to_stderr(event: str, /) -> Progress:
    """Progress as JSON lines on stderr."""

    def say(text: str) -> None:
        print(json.dumps({"event": event, "text": text}), file=sys.stderr, flush=True)

    return say
