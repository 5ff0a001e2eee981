"""What drawing a token costs: head and sampler with various settings, and which part of a window is the sampler's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float32

from deployments.lm.attention import TILE_ROWS
from deployments.messages.generation import SamplingSettings
from deployments.verifier.loading import LoadedModel
from deployments.verifier.packing import PackedWindow, pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.window import Rung
from serve_app.benchmark.alternation import Arm, Effort, Spread, alternate, spread, timed
from serve_app.benchmark.windows import body_seconds, full_window, slot_of

_SAMPLERS = {
    "greedy": SamplingSettings(temperature=0.0),
    "T 0.8": SamplingSettings(temperature=0.8),
    "T 0.8, top_p 0.95": SamplingSettings(temperature=0.8, top_p=0.95),
    "T 0.8, top_k 40": SamplingSettings(temperature=0.8, top_k=40),
}
_BODY, _HEAD = "body", "head"


@dataclass(frozen=True, kw_only=True)
class DrawResult:
    """One sampler over `rows` rows that all draw.

    Attributes:
        seconds: head and sampler.
        head: the head alone.
        body: the layers over a window of these rows.
        share: the sampler's part of the whole window: what `seconds` has more than `head`, over body and draw.
    """

    rows: int
    sampler: str
    seconds: Spread
    head: Spread
    body: Spread
    share: Spread


def measure_draws(model: LoadedModel, *, ids: Sequence[int], context: int, effort: Effort) -> tuple[DrawResult, ...]:
    """Every size of draw with every sampler, on the hidden states of a real text.

    Args:
        ids: the text, at least 8 tokens; how long a sampler takes depends on how sure the model is.
        context: tokens that the rows of the compared window see.
    """
    rung = model.report.ladder.widest
    text = tuple(ids[: min(rung.rows, rung.tiles * TILE_ROWS, model.settings.context)])
    hidden = model.programs.run_body(_window(model, text=text, emits=0, sampling=SamplingSettings()))
    return tuple(
        result
        for size in model.report.ladder.emits
        if size <= len(text)
        for result in _measure(model, size=size, text=text, hidden=hidden, context=context, effort=effort)
    )


def _measure(
    model: LoadedModel,
    *,
    size: int,
    text: tuple[int, ...],
    hidden: Float32[Array, "rows width"],
    context: int,
    effort: Effort,
) -> list[DrawResult]:
    head = model.programs.compile_head(size)
    numbers = np.arange(len(text) - size, len(text), dtype=np.int32)
    body = full_window(model, rung=_rung(model, rows=size), context=min(context, model.settings.context))
    arms: dict[str, Arm[float]] = {
        _BODY: lambda _: body_seconds(model, window=body),
        _HEAD: lambda _: timed(lambda: head(hidden, numbers).block_until_ready()),
    }
    for name, sampling in _SAMPLERS.items():
        arms[name] = _draw_arm(model, hidden=hidden, window=_window(model, text=text, emits=size, sampling=sampling))
    seconds = alternate(arms, effort=effort)
    return [
        DrawResult(
            rows=size,
            sampler=name,
            seconds=spread(seconds[name]),
            head=spread(seconds[_HEAD]),
            body=spread(seconds[_BODY]),
            share=spread(_shares(seconds[name], heads=seconds[_HEAD], bodies=seconds[_BODY])),
        )
        for name in _SAMPLERS
    ]


def _draw_arm(model: LoadedModel, *, hidden: Float32[Array, "rows width"], window: PackedWindow) -> Arm[float]:
    return lambda _: timed(lambda: model.programs.run_emit(hidden, window))


def _shares(draws: Sequence[float], *, heads: Sequence[float], bodies: Sequence[float]) -> list[float]:
    # Not below 0: where the sampler is nearly free, noise alone can make the head look slower than both.
    rounds = zip(draws, heads, bodies, strict=True)
    return [max(draw - head, 0.0) / (body + draw) for draw, head, body in rounds]


def _rung(model: LoadedModel, *, rows: int) -> Rung:
    """What a step takes in which all slots draw, `rows` rows together."""
    slots = min(model.settings.slots, rows)
    return model.report.ladder.rung_for(rows=rows, tiles=slots * -(-rows // (slots * TILE_ROWS)))


def _window(model: LoadedModel, *, text: tuple[int, ...], emits: int, sampling: SamplingSettings) -> PackedWindow:
    """The text from its beginning in one slot; its last `emits` rows draw."""
    span = Span(slot=slot_of(model, number=0, tokens=text, sampling=sampling), start=0, tokens=text, emits=emits)
    return pack(
        StepPlan(spans=(span,)),
        rung=model.report.ladder.widest,
        emits=emits,
        page_size=model.settings.page_size,
        slot_pages=model.programs.slot_pages,
    )
