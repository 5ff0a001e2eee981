"""What a verifier is compiled for: from settings, and the network's numbers, to the sizes of its programs.

Reads no weights and asks no device.
"""

from dataclasses import dataclass, replace

from deployments.lm.cache.layout import CacheShape
from deployments.lm.decoder import DecoderConfig
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import ConfigError
from deployments.verifier.blueprint import Sizes
from deployments.verifier.calls import ChipRounds, ChipSettings, calls_for
from deployments.verifier.ladder import Ladder, build_ladder
from deployments.verifier.states import StateRoom


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What to load and for what load.

    Attributes:
        context: the most tokens of prompt and reply together, per slot.
        draft_k: the most drafts per request and window; 0 compiles for plain decoding alone.
        draft_rows: the most drafts of a window; `None` sets no limit.
        ladder: row counts of the windows.
        kernels: which kernels the network is built with; `sizes_for` wants those that `AUTO` came to.
        tensor_parallel: over how many devices the network is split.
        compile_cache: a directory that keeps compiled programs; empty keeps none, and native kernels elsewhere.
        cache_pages: pages of the cache; `None` takes as many as all slots can fill.
        prefix_cache: whether pages are found by their content and shared.
        kept_states: states of recurrent layers that are kept to be found again; `None` keeps one per slot.
        reserve_tokens, prefill_budget, priority_step_s: as in `batch.Limits`.
        chip: a drafter on the verifier's device, for several windows in one call; `None` where there is none.
    """

    model_path: str
    precision: Precision = Precision.INT8
    kernels: Kernels = Kernels.AUTO
    tensor_parallel: int = 1
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
    chip: ChipSettings | None = None

    @property
    def slot_pages(self) -> int:
        """Pages of one request that fills its context."""
        return self.context // self.page_size

    @property
    def pages(self) -> int:
        """Pages of the cache, without the scratch page."""
        return self.slots * self.slot_pages if self.cache_pages is None else self.cache_pages


def sizes_for(settings: ModelSettings, /, *, config: DecoderConfig) -> Sizes:
    """The sizes for settings that `fitted` returned. Raises `ConfigError` for a ladder that cannot be."""
    room = _state_room(settings, config=config)
    ladder = build_ladder(
        settings.ladder, slots=settings.slots, draft_k=settings.draft_k, draft_rows=settings.draft_rows
    )
    return Sizes(
        ladder=ladder,
        shape=_cache_shape(settings, config=config, room=room),
        cache_dtype=settings.precision.cache_dtype,
        slots=settings.slots,
        slot_pages=settings.slot_pages,
        longest=max(settings.draft_k, 1),
        room=room,
        rounds=_chip_rounds(settings, ladder=ladder, config=config),
    )


def fitted(settings: ModelSettings, /, *, config: DecoderConfig) -> ModelSettings:
    """The settings as this network takes them: no page is longer than a context.

    Raises `ConfigError` for those that it cannot take.
    """
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


def _chip_rounds(settings: ModelSettings, *, ladder: Ladder, config: DecoderConfig) -> ChipRounds | None:
    # Between two windows states are put in order by the host.
    if settings.chip is None or not settings.draft_k or config.is_recurrent:
        return None
    drafts = settings.slots * settings.draft_k
    most = settings.slots + (drafts if settings.draft_rows is None else min(drafts, settings.draft_rows))
    return calls_for(ladder, chip=settings.chip, longest=settings.draft_k, most_rows=most)


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
        is_abreast=settings.kernels in (Kernels.PALLAS, Kernels.PALLAS_INTERPRETED),
        states=0 if room is None else room.states,
        pending=0 if room is None else room.pending,
    )
