"""Proves at start-up, on the serving executables and this device, that every rung computes the same bits.

The same tokens go through each rung as through the smallest one: a rung whose hidden rows or cache pages differ in one
bit is refused, and so is one that could not be run. Where layers are recurrent, states are compared too, and the tokens
come as drafts of which some are refused. All rungs share the programs that draw, and those are compared with the
smallest of them on the same hidden rows; where a size differs, rungs that could need it are refused too. With the
smallest rung alone every reply is still exact.
"""

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from deployments.lm.sampling.logprobs import no_logprobs
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.calls import RoundsSize
from deployments.verifier.history import History
from deployments.verifier.ladder import Ladder
from deployments.verifier.packing import PackedExtras, PackedWindow, no_shaping
from deployments.verifier.programs import Programs, Progress
from deployments.verifier.traces import TRACED_TOKENS, Trace, trace_of
from deployments.verifier.window import EMIT_FLOATS, EMIT_INTS, Rung

_SETTINGS = (
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.9, top_p=0.9, seed=7),
    SamplingSettings(temperature=1.1, top_k=20, top_p=0.95, min_p=0.01, seed=11),
    SamplingSettings(temperature=1.0, seed=13),
)
_CHAIN = 4


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What the probe found.

    Attributes:
        ladder: the rungs that may serve.
        refused: why each other rung may not.
        rows: rows compared, summed over rungs.
        refused_calls: why calls of several windows of some sizes may not serve.
    """

    ladder: Ladder
    refused: dict[Rung, str]
    rows: int
    refused_calls: dict[RoundsSize, str] = field(default_factory=dict)


def probe(programs: Programs, *, vocabulary: int, progress: Progress) -> ProbeReport:
    """Compares every rung with the smallest one. Uses the cache and leaves it empty."""
    rungs = programs.ladder.rungs
    shape = programs.shape
    # As many as fill the widest window, if two slots of so many fit.
    count = min(
        max(TRACED_TOKENS, rungs[-1].rows),
        programs.slot_pages * shape.page_size,
        (shape.pages - 1) // 2 * shape.page_size,
    )
    tokens = np.random.default_rng(count).integers(0, vocabulary, count).astype(np.int32)
    alone = trace_of(programs, rung=rungs[0], tokens=tokens[::-1], compared=count)
    reference = replace(trace_of(programs, rung=rungs[0], tokens=tokens), beside=(alone.hidden,))
    if programs.room is not None:
        difference = _difference(reference, trace_of(programs, rung=rungs[0], tokens=tokens, is_drafted=True))
        if difference is not None:
            raise RuntimeError(f"on this device a state depends on what was drafted ({difference}); it cannot serve")
    refused: dict[Rung, str] = {}
    rows = 0
    for rung in rungs[1:]:
        progress(f"proving that windows of {rung.rows} rows in {rung.tiles} tiles compute the same bits")
        # Whatever a device may say: what cannot be run cannot be proved.
        try:
            trace = trace_of(programs, rung=rung, tokens=tokens, is_drafted=programs.room is not None)
        except Exception as error:
            refused[rung] = f"it could not be run ({type(error).__name__}: {error})"
            continue
        rows += trace.rows
        difference = _difference(reference, trace)
        if difference is not None:
            refused[rung] = difference
    proved = _proved_draws(programs, hidden=alone.hidden)
    if proved < programs.ladder.needed_emits[-1]:
        raise RuntimeError(f"on this device draws for more than {proved} rows differ, and every window may need them")
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
        prompt_ids=tuple(range(TRACED_TOKENS)),
        max_tokens=2,
        min_tokens=2,
        end_ids=(1, 3),
        sampling=SamplingSettings(
            repetition_penalty=1.3, logit_bias=tuple((token, 50.0) for token in range(TRACED_TOKENS))
        ),
    )
    own = History().blocks(request, tokens=(*request.prompt_ids, 4, 4), drafts=())
    blocks = np.concatenate([own] * (emits // _CHAIN))
    blocks[:, 0] = np.repeat(np.arange(0, emits, _CHAIN), len(own))
    blocks[:, 1] = 1
    return PackedExtras(rows=rows, blocks=blocks, wants_logprobs=True)


def _difference(reference: Trace, other: Trace) -> str | None:
    """What differs first, in words; `None` when no bit does."""
    (alone,) = reference.beside
    beside = [place for rows in other.beside if (place := _differing(alone[: len(rows)], rows)) is not None]
    parts = {
        "hidden row": _differing(reference.hidden, other.hidden),
        "row beside": beside[0] if beside else None,
        "cache byte": _differing(reference.cache, other.cache),
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
