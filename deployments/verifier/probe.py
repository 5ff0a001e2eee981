"""Proves at start-up, on the serving executables and this device, that every rung computes the same bits.

The same tokens go through each rung as through the smallest one: a rung whose hidden rows or cache pages differ in one
bit is refused, and so is one that could not be run. All rungs share the programs that draw, and those are compared
with the smallest of them on the same hidden rows; where a size differs, rungs that could need it are refused too. With
the smallest rung alone every reply is still exact.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt8

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.sampling.logprobs import no_logprobs
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.history import History
from deployments.verifier.ladder import Ladder
from deployments.verifier.packing import PackedExtras, PackedWindow, no_shaping, pack
from deployments.verifier.programs import Programs, Progress
from deployments.verifier.scheduler import Span, StepPlan
from deployments.verifier.slots import Slot
from deployments.verifier.window import EMIT_FLOATS, EMIT_INTS, Rung

_SETTINGS = (
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.9, top_p=0.9, seed=7),
    SamplingSettings(temperature=1.1, top_k=20, top_p=0.95, min_p=0.01, seed=11),
    SamplingSettings(temperature=1.0, seed=13),
)
_TOKENS = 72
_CHAIN = 4
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
    """What came of one run.

    Attributes:
        beside: per window the rows of the other slot, which always start at its first token.
    """

    hidden: Float32[np.ndarray, "tokens width"]
    cache: UInt8[np.ndarray, "..."]
    beside: tuple[Float32[np.ndarray, "_ width"], ...]

    @property
    def rows(self) -> int:
        return len(self.hidden) + sum(len(rows) for rows in self.beside)


def probe(programs: Programs, *, vocabulary: int, progress: Progress) -> ProbeReport:
    """Compares every rung with the smallest one. Uses the cache and leaves it empty."""
    rungs = programs.ladder.rungs
    shape = programs.shape
    # As many as fill the widest window, if two slots of so many fit.
    count = min(
        max(_TOKENS, rungs[-1].rows), programs.slot_pages * shape.page_size, (shape.pages - 1) // 2 * shape.page_size
    )
    tokens = np.random.default_rng(count).integers(0, vocabulary, count).astype(np.int32)
    alone = _trace(programs, rung=rungs[0], tokens=tokens[::-1], compared=count)
    reference = replace(_trace(programs, rung=rungs[0], tokens=tokens), beside=(alone.hidden,))
    refused: dict[Rung, str] = {}
    rows = 0
    for rung in rungs[1:]:
        progress(f"proving that windows of {rung.rows} rows in {rung.tiles} tiles compute the same bits")
        # Whatever a device may say: what cannot be run cannot be proved.
        try:
            trace = _trace(programs, rung=rung, tokens=tokens)
        except Exception as error:
            refused[rung] = f"it could not be run ({type(error).__name__}: {error})"
            continue
        rows += trace.rows
        difference = _difference(reference, trace)
        if difference is not None:
            refused[rung] = difference
    proved = _proved_draws(programs, hidden=alone.hidden)
    for rung in rungs[1:]:
        if rung.rows > proved < programs.ladder.emits[-1]:
            refused.setdefault(rung, f"draws for more than {proved} rows differ")
    programs.clear_cache()
    return ProbeReport(ladder=programs.ladder.without(frozenset(refused)), refused=refused, rows=rows)


def _proved_draws(programs: Programs, *, hidden: Float32[np.ndarray, "tokens width"]) -> int:
    """The largest size of the draw up to which all sizes compute the same bits."""
    hidden = hidden[: programs.ladder.widest.rows]
    states = jnp.zeros((programs.ladder.widest.rows, hidden.shape[1]), jnp.float32).at[: len(hidden)].set(hidden)
    smallest, *others = programs.ladder.emits
    expected = _drawn(programs, states=states, count=len(hidden), size=smallest)
    proved = smallest
    for size in others:
        try:
            found = _drawn(programs, states=states, count=len(hidden), size=size)
        except Exception:
            return proved
        if _differing(expected, found) is not None:
            return proved
        proved = size
    return proved


def _drawn(
    programs: Programs, *, states: Float32[Array, "rows width"], count: int, size: int
) -> Int32[np.ndarray, "drawn fields"]:
    """What is drawn after each of the first `count` rows, as bits: `size` at a time, round and round, plain and then
    beside rows that ask for everything.

    Raises:
        RuntimeError: a plain row draws something else beside such a row.
    """
    most = max(programs.ladder.emits)
    places = np.arange(-(-count // most) * most, dtype=np.int32) % count
    plain, mixed = (
        np.concatenate(
            [
                _draw(programs, states=states, rows=places[i : i + size], is_mixed=is_mixed)
                for i in range(0, len(places), size)
            ]
        )
        for is_mixed in (False, True)
    )
    alike = np.tile(np.arange(_CHAIN) > 0, len(places) // _CHAIN)
    if _differing(plain[alike, :2].copy(), mixed[alike, :2].copy()) is not None:
        raise RuntimeError("on this device a draw depends on what is asked for beside it; it cannot serve")
    return np.concatenate([plain, mixed])


def _draw(
    programs: Programs, *, states: Float32[Array, "rows width"], rows: Int32[np.ndarray, " emits"], is_mixed: bool
) -> Int32[np.ndarray, "emits fields"]:
    """Token, score and log-probabilities. Where `is_mixed`, the first of every four rows asks for everything."""
    ints = np.zeros((len(rows), EMIT_INTS), np.int32)
    floats = np.zeros((len(rows), EMIT_FLOATS), np.float32)
    for emit, row in enumerate(rows):
        settings = _SETTINGS[(row // _CHAIN + row) % len(_SETTINGS)]
        ints[emit] = (row, 0, 1, settings.top_k, settings.seed, 0, row + 1)
        floats[emit] = (settings.temperature, settings.top_p, settings.min_p)
    nothing = np.zeros((0, 0), np.int32)
    extras = _everything(len(rows)) if is_mixed else None
    result = programs.run_emit(
        states, PackedWindow(rows=nothing, tiles=nothing, emit_ints=ints, emit_floats=floats, extras=extras)
    )
    logprobs = result.logprobs or no_logprobs(len(rows))
    fields = (result.tokens, result.scores, *logprobs)
    return np.concatenate([np.asarray(field).reshape(len(rows), -1).view(np.int32) for field in fields], axis=1)


def _everything(emits: int) -> PackedExtras:
    """Penalties, biases and suppressed ends for the first of every four rows, whose draws all come of them."""
    rows = no_shaping(emits)
    rows[::_CHAIN] = (1.3, 0.7, 0.4, 1.0)
    request = GenerateRequest(
        request_id="probe",
        prompt_ids=tuple(range(_TOKENS)),
        max_tokens=2,
        min_tokens=2,
        end_ids=(1, 3),
        sampling=SamplingSettings(repetition_penalty=1.3, logit_bias=tuple((token, 50.0) for token in range(_TOKENS))),
    )
    own = History().blocks(request, tokens=(*request.prompt_ids, 4, 4), drafts=())
    blocks = np.concatenate([own] * (emits // _CHAIN))
    blocks[:, 0] = np.repeat(np.arange(0, emits, _CHAIN), len(own))
    blocks[:, 1] = 1
    return PackedExtras(rows=rows, blocks=blocks, wants_logprobs=True)


def _trace(programs: Programs, *, rung: Rung, tokens: Int32[np.ndarray, " tokens"], compared: int = _TOKENS) -> _Trace:
    """Runs the first tokens through windows of one size, in uneven pieces, beside another slot that fills the rest."""
    programs.clear_cache()
    needed = -(-len(tokens) // programs.shape.page_size)
    pages = tuple(range(SCRATCH_PAGE + 1, SCRATCH_PAGE + 1 + needed))
    slot = _slot(tokens[:compared], pages=pages)
    beside = _slot(tokens[::-1], pages=tuple(page + needed for page in pages))
    hidden: list[np.ndarray] = []
    others: list[np.ndarray] = []
    while slot.cached < len(slot.tokens):
        plan = _plan(slot, most=_PIECES[len(hidden) % len(_PIECES)], beside=beside, rung=rung)
        window = pack(plan, rung=rung, emits=0, page_size=programs.shape.page_size, slot_pages=programs.slot_pages)
        states = np.asarray(programs.run_body(window))
        count = len(plan.spans[-1].tokens)
        hidden.append(states[plan.rows - count : plan.rows])
        others.append(states[: plan.rows - count])
        slot.cached += count
    cache = [np.asarray(programs.page(page, layer=layer)) for layer in range(programs.shape.layers) for page in pages]
    return _Trace(hidden=np.concatenate(hidden), cache=np.stack(cache).view(np.uint8), beside=tuple(others))


def _plan(slot: Slot, *, most: int, beside: Slot, rung: Rung) -> StepPlan:
    """The other slot's rows first, so that the slot's own lie elsewhere in each window."""
    tokens = tuple(slot.tokens[slot.cached : slot.cached + min(most, rung.rows, rung.tiles * TILE_ROWS)])
    span = Span(slot=slot, start=slot.cached, tokens=tokens, emits=0)
    room = min(rung.rows - len(tokens), (rung.tiles - span.tiles) * TILE_ROWS)
    if room == 0:
        return StepPlan(spans=(span,))
    other = Span(slot=beside, start=0, tokens=tuple(beside.tokens[:room]), emits=0)
    return StepPlan(spans=(other, span))


def _slot(tokens: Int32[np.ndarray, " tokens"], *, pages: tuple[int, ...]) -> Slot:
    ids = tuple(int(token) for token in tokens)
    request = GenerateRequest(request_id="probe", prompt_ids=ids, max_tokens=1)
    return Slot(index=0, request=request, tokens=list(ids), pages=pages, admitted_at=0.0)


def _difference(reference: _Trace, other: _Trace) -> str | None:
    """What differs first, in words; `None` when no bit does."""
    (alone,) = reference.beside
    beside = [place for rows in other.beside if (place := _differing(alone[: len(rows)], rows)) is not None]
    parts = {
        "hidden row": _differing(reference.hidden, other.hidden),
        "row beside": beside[0] if beside else None,
        "cache byte row": _differing(reference.cache, other.cache),
    }
    return next((f"{name} {place} differs" for name, place in parts.items() if place is not None), None)


def _differing(left: np.ndarray, right: np.ndarray) -> int | None:
    if left.shape != right.shape:
        return 0
    if not left.size:
        return None
    differs = left.view(np.uint8).reshape(len(left), -1) != right.view(np.uint8).reshape(len(right), -1)
    rows = np.flatnonzero(differs.any(axis=1))
    return int(rows[0]) if rows.size else None
