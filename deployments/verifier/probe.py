"""Proves at start-up, on the serving executables and this device, that every rung computes the same bits.

The same tokens go through each rung as through the smallest one: a rung whose hidden rows, cache pages, draws or
winning scores differ in one bit is refused, and so is one that could not be run. Each size of the draw is compared
with the smallest one too; where one differs, so are rungs that could need it. With the smallest rung alone every
reply is still exact.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.ladder import Ladder
from deployments.verifier.packing import PackedWindow, pack
from deployments.verifier.programs import Programs, Progress, WindowResult
from deployments.verifier.scheduler import Span, StepPlan
from deployments.verifier.slots import Slot
from deployments.verifier.window import Rung

_SETTINGS = (
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.9, top_p=0.9, seed=7),
    SamplingSettings(temperature=1.1, top_k=20, top_p=0.95, min_p=0.01, seed=11),
)
_TOKENS = 72
_PIECES = (1, 7, 3, 16, 5, 32, 2)


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What the probe found.

    Attributes:
        ladder: the rungs that may serve.
        refused: why each other rung may not.
        rows: rows compared, summed over rungs.
    """

    ladder: Ladder
    refused: dict[Rung, str]
    rows: int


@dataclass(frozen=True, kw_only=True)
class _Trace:
    hidden: Float32[np.ndarray, "tokens width"]
    cache: UInt8[np.ndarray, "..."]
    draws: Int32[np.ndarray, " tokens"]
    scores: Float32[np.ndarray, " tokens"]


def probe(programs: Programs, *, vocabulary: int, progress: Progress) -> ProbeReport:
    """Compares every rung with the smallest one. Uses the cache and leaves it empty."""
    rungs = programs.ladder.rungs
    shape = programs.shape
    count = min(
        _TOKENS, rungs[-1].rows, programs.slot_pages * shape.page_size, (shape.pages - 1) // 2 * shape.page_size
    )
    tokens = np.random.default_rng(count).integers(0, vocabulary, count).astype(np.int32)
    reference = _trace(programs, rung=rungs[0], tokens=tokens)
    refused: dict[Rung, str] = {}
    for rung in rungs[1:]:
        progress(f"proving that windows of {rung.rows} rows in {rung.tiles} tiles compute the same bits")
        difference = _attempt(programs, reference=reference, rung=rung, tokens=tokens)
        if difference is not None:
            refused[rung] = difference
    proved = _proved_draws(programs, tokens=tokens[: min(count, rungs[0].rows, rungs[0].tiles * TILE_ROWS)])
    for rung in rungs[1:]:
        if rung.rows > proved < programs.ladder.emits[-1]:
            refused.setdefault(rung, f"draws for more than {proved} rows differ")
    programs.clear_cache()
    ladder = programs.ladder.without(frozenset(refused))
    return ProbeReport(ladder=ladder, refused=refused, rows=count * (len(rungs) - 1))


def _attempt(programs: Programs, *, reference: _Trace, rung: Rung, tokens: Int32[np.ndarray, " tokens"]) -> str | None:
    try:
        return _difference(reference, _trace(programs, rung=rung, tokens=tokens))
    except Exception as error:
        # Whatever a device may say: what cannot be run cannot be proved.
        return f"it could not be run ({type(error).__name__}: {error})"


def _proved_draws(programs: Programs, *, tokens: Int32[np.ndarray, " tokens"]) -> int:
    """The largest size of the draw up to which all sizes compute the same bits, whatever the rows are beside."""
    programs.clear_cache()
    smallest, *others = programs.ladder.emits
    rung = programs.ladder.rungs[0]
    slot = _slot(tokens, pages=tuple(range(1, programs.slot_pages + 1)), settings=_SETTINGS[0])
    plan = StepPlan(spans=(Span(slot=slot, start=0, tokens=tuple(slot.tokens), emits=len(tokens)),))
    window = _pack(plan, programs=programs, rung=rung, emits=smallest)
    for row, settings in enumerate(_SETTINGS * smallest):
        window.emit_floats[row % smallest] = (settings.temperature, settings.top_p, settings.min_p)
        window.emit_ints[row % smallest, 3] = settings.top_k
    states = programs.run_body(window)
    expected = programs.run_emit(states, window)
    proved = smallest
    for size in others:
        copies = size // smallest
        ints, floats = np.tile(window.emit_ints, (copies, 1)), np.tile(window.emit_floats, (copies, 1))
        try:
            result = programs.run_emit(states, replace(window, emit_ints=ints, emit_floats=floats))
        except Exception:
            return proved
        pairs = ((expected.scores, result.scores), (expected.tokens, result.tokens))
        if any(_differing(np.tile(left, copies), right) is not None for left, right in pairs):
            return proved
        proved = size
    return proved


def _trace(programs: Programs, *, rung: Rung, tokens: Int32[np.ndarray, " tokens"]) -> _Trace:
    """Runs the tokens through windows of one size, in uneven pieces, beside another slot that holds something else."""
    programs.clear_cache()
    needed = -(-len(tokens) // programs.shape.page_size)
    pages = tuple(range(SCRATCH_PAGE + 1, SCRATCH_PAGE + 1 + needed))
    thirds = [_slot(tokens, pages=pages, settings=settings) for settings in _SETTINGS]
    beside = _slot(tokens[::-1], pages=tuple(page + needed for page in pages), settings=_SETTINGS[0])
    hidden, draws, scores = [], [], []
    start = step = 0
    while start < len(tokens):
        third = start * len(thirds) // len(tokens)
        end = -(-(third + 1) * len(tokens) // len(thirds))
        most = min(end - start, _PIECES[step % len(_PIECES)], programs.ladder.emits[-1], rung.rows)
        plan = _plan(thirds[third], start=start, most=most, beside=beside, rung=rung)
        count = len(plan.spans[-1].tokens)
        states, result = _run(programs, plan=plan, rung=rung)
        hidden.append(states[plan.rows - count : plan.rows])
        draws.append(result.tokens[:count])
        scores.append(result.scores[:count])
        start += count
        step += 1
    cache = [np.asarray(programs.page(page, layer=layer)) for layer in range(programs.shape.layers) for page in pages]
    return _Trace(
        hidden=np.concatenate(hidden),
        cache=np.stack(cache).view(np.uint8),
        draws=np.concatenate(draws),
        scores=np.concatenate(scores),
    )


def _plan(slot: Slot, *, start: int, most: int, beside: Slot, rung: Rung) -> StepPlan:
    """The other slot's rows first, so that the ones compared lie elsewhere in each window."""
    count = min(most, rung.tiles * TILE_ROWS)
    span = Span(slot=slot, start=start, tokens=tuple(slot.tokens[start : start + count]), emits=count)
    room = min(rung.rows - count, (rung.tiles - span.tiles) * TILE_ROWS)
    if room == 0:
        return StepPlan(spans=(span,))
    other = Span(slot=beside, start=0, tokens=tuple(beside.tokens[:room]), emits=0)
    return StepPlan(spans=(other, span))


def _run(programs: Programs, *, plan: StepPlan, rung: Rung) -> tuple[Float32[np.ndarray, "rows width"], WindowResult]:
    window = _pack(plan, programs=programs, rung=rung, emits=programs.ladder.emits_for(plan.emits))
    states = programs.run_body(window)
    return np.asarray(states), programs.run_emit(states, window)


def _pack(plan: StepPlan, *, programs: Programs, rung: Rung, emits: int) -> PackedWindow:
    return pack(plan, rung=rung, emits=emits, page_size=programs.shape.page_size, slot_pages=programs.slot_pages)


def _slot(tokens: Int32[np.ndarray, " tokens"], *, pages: tuple[int, ...], settings: SamplingSettings) -> Slot:
    ids = tuple(int(token) for token in tokens)
    request = GenerateRequest(request_id="probe", prompt_ids=ids, max_tokens=1, sampling=settings)
    return Slot(index=0, request=request, tokens=list(ids), pages=pages, admitted_at=0.0)


def _difference(reference: _Trace, other: _Trace) -> str | None:
    """What differs first, in words; `None` when no bit does."""
    parts = {
        "hidden row": _differing(reference.hidden, other.hidden),
        "cache byte row": _differing(reference.cache, other.cache),
        "draw": _differing(reference.draws, other.draws),
        "winning score": _differing(reference.scores, other.scores),
    }
    return next((f"{name} {place} differs" for name, place in parts.items() if place is not None), None)


def _differing(left: np.ndarray, right: np.ndarray) -> int | None:
    if left.shape != right.shape:
        return 0
    differs = left.view(np.uint8).reshape(len(left), -1) != right.view(np.uint8).reshape(len(right), -1)
    rows = np.flatnonzero(differs.any(axis=1))
    return int(rows[0]) if rows.size else None
