"""The compiled windows of a loaded model, timed one by one in this process. Knows programs, not requests or Serve."""

from collections.abc import Sequence
from dataclasses import dataclass

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.layout import SCRATCH_STATE
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.loading import LoadedModel
from deployments.verifier.packing import PackedWindow, pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.slots import Slot
from deployments.verifier.states import Segment
from deployments.verifier.window import Rung
from serve_app.benchmark.alternation import Arm, Effort, Spread, alternate, spread, timed


@dataclass(frozen=True, kw_only=True)
class WindowResult:
    """Seconds of the layers over one window of `rows` rows in `tiles` tiles, each row seeing `context` tokens."""

    rows: int
    tiles: int
    context: int
    seconds: Spread


def measure_windows(model: LoadedModel, *, contexts: Sequence[int], effort: Effort) -> tuple[WindowResult, ...]:
    """Every rung at every context that fits, in turn."""
    fitting = [context for context in contexts if context <= model.settings.context] or [model.settings.context]
    places = [(rung, context) for context in fitting for rung in model.report.ladder.rungs]
    arms = {place: _arm(model, rung=place[0], context=place[1]) for place in places}
    return tuple(
        WindowResult(rows=rung.rows, tiles=rung.tiles, context=context, seconds=spread(seconds))
        for (rung, context), seconds in alternate(arms, effort=effort).items()
    )


def body_seconds(model: LoadedModel, *, window: PackedWindow) -> float:
    """One run of the layers."""
    return timed(lambda: model.programs.run_body(window).block_until_ready())


def full_window(model: LoadedModel, *, rung: Rung, context: int) -> PackedWindow:
    """A window of all of `rung`'s rows, spread over as many slots as it has room for, that end at `context`.

    The time of a window does not depend on what the cache holds, so nothing has been computed there beforehand.
    """
    slots = max(n for n in range(1, model.settings.slots + 1) if _fits(rung, slots=n))
    share, extra = divmod(rung.rows, slots)
    counts = [share + (number < extra) for number in range(slots)]
    spans = [_span(model, number=number, rows=rows, context=context) for number, rows in enumerate(counts)]
    return pack(
        StepPlan(spans=tuple(spans)),
        rung=rung,
        emits=0,
        page_size=model.settings.page_size,
        slot_pages=model.programs.slot_pages,
        room=model.programs.room,
    )


def segments_of(model: LoadedModel, *, number: int, rows: int) -> tuple[Segment, ...]:
    """How slot `number`'s rows run through recurrent layers, if there are any: into a state of its own."""
    room = model.programs.room
    return () if room is None else (Segment(count=rows, read=room.empty, write=SCRATCH_STATE + 1 + number),)


def slot_of(
    model: LoadedModel, *, number: int, tokens: tuple[int, ...], sampling: SamplingSettings | None = None
) -> Slot:
    """Slot `number`, with all pages a slot may have."""
    first = SCRATCH_PAGE + 1 + number * model.programs.slot_pages
    request = GenerateRequest(
        request_id=f"bench-{number}", prompt_ids=tokens, max_tokens=1, sampling=sampling or SamplingSettings()
    )
    pages = tuple(range(first, first + model.programs.slot_pages))
    return Slot(index=number, request=request, tokens=list(tokens), pages=pages, admitted_at=0.0)


def _arm(model: LoadedModel, *, rung: Rung, context: int) -> Arm[float]:
    window = full_window(model, rung=rung, context=context)
    return lambda _: body_seconds(model, window=window)


def _fits(rung: Rung, *, slots: int) -> bool:
    share, extra = divmod(rung.rows, slots)
    tiles = (slots - extra) * -(-share // TILE_ROWS) + extra * -(-(share + 1) // TILE_ROWS)
    return share > 0 and rung.holds(rows=rung.rows, tiles=tiles)


def _span(model: LoadedModel, *, number: int, rows: int, context: int) -> Span:
    tokens = tuple(token % model.config.vocabulary for token in range(rows))
    return Span(
        slot=slot_of(model, number=number, tokens=tokens),
        start=context - rows,
        tokens=tokens,
        emits=0,
        segments=segments_of(model, number=number, rows=rows),
    )
