"""The compiled windows of one network: compiled ahead of time, run by the engine's thread, never compiled again.

Holds the weights and the cache; knows no requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from deployments.lm.cache.layout import RecurrentState
from deployments.lm.program_text import program_fingerprint
from deployments.lm.sampling.logprobs import LogProbs
from deployments.messages.errors import ConfigError
from deployments.verifier.blueprint import Blueprint
from deployments.verifier.calls import RoundsInput, RoundsOutput, RoundsSize
from deployments.verifier.compiling import Unbuilt, compile_all, options_for, temporaries, unknown_options
from deployments.verifier.packing import PackedWindow
from deployments.verifier.supplying import ExtrasSupply
from deployments.verifier.window import (
    BodyInput,
    EmitInput,
    Emitted,
    Rung,
)

type Progress = Callable[[str], None]
type Head = Callable[[Float32[Array, "rows width"], Int32[np.ndarray, " rows"]], Float32[Array, "rows vocabulary"]]


@dataclass(frozen=True, kw_only=True)
class WindowResult:
    """What a window drew, on the host; as `window.Emitted`.

    Attributes:
        logprobs: `None` unless some row wants them.
    """

    tokens: Int32[np.ndarray, " emits"]
    live: Bool[np.ndarray, " emits"]
    scores: Float32[np.ndarray, " emits"]
    logprobs: LogProbs | None = None


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A window under way."""

    hidden: Float32[Array, "rows width"]
    emitted: Emitted | None
    wants_logprobs: bool

    def result(self) -> WindowResult | None:
        """What it drew; `None` when it draws nothing. Blocks until it is done."""
        if self.emitted is None:
            self.hidden.block_until_ready()
            return None
        return _fetched(self.emitted, wants_logprobs=self.wants_logprobs)


@dataclass(frozen=True, kw_only=True)
class LaunchedRounds:
    """A call of several windows under way."""

    out: RoundsOutput

    def result(self) -> RoundsOutput:
        """What they drew, on the host. Blocks until all are done."""
        return cast(RoundsOutput, jax.tree.map(np.asarray, self.out))


class Programs:
    """Every program of a verifier, and the device state they share.

    Attributes:
        slots, slot_pages, room: as in `blueprint.Sizes`.
        mesh: the devices they run on; `None` for the only one.
        calls: the sizes of calls of several windows that may be used.
        fingerprint: of what all of them compute, as they were lowered.
    """

    fingerprint: str
    calls: tuple[RoundsSize, ...] = ()

    def __init__(self, blueprint: Blueprint, /, *, progress: Progress) -> None:
        sizes = blueprint.sizes
        self.ladder = sizes.ladder
        self.shape = sizes.shape
        self.slots = sizes.slots
        self.slot_pages = sizes.slot_pages
        self.room = sizes.room
        self.mesh = blueprint.mesh
        self.calls = () if sizes.rounds is None else sizes.rounds.sizes
        self._blueprint = blueprint
        self._weights = blueprint.weights
        self._cache = blueprint.fresh_cache()
        self._extras = ExtrasSupply(
            sizes=sizes.ladder.emits,
            slots=sizes.slots,
            context=sizes.context,
            longest=sizes.longest,
            place=blueprint.everywhere,
        )
        for option in sorted(unknown_options(self.mesh)):
            progress(f"this compiler has no option {option}; programs go without it")
        self._zeroed = blueprint.clearing().compile()
        self._body, self._emit, self._rounds = self._compile(progress)

    def launch(self, window: PackedWindow, /) -> Launched:
        """Sends one window off and returns at once; windows run in the order in which they were sent off."""
        hidden = self.run_body(window)
        emitted = self._run_emit(hidden, window) if window.emit_ints.shape[0] else None
        if emitted is not None:
            # On their way before anyone waits for them.
            emitted.tokens.copy_to_host_async()
            emitted.live.copy_to_host_async()
        return Launched(hidden=hidden, emitted=emitted, wants_logprobs=_wants_logprobs(window))

    def launch_rounds(self, taken: RoundsInput, /, *, size: RoundsSize) -> LaunchedRounds:
        """Sends off several windows as one call and returns at once."""
        extras = self._extras.none(size.emits)
        out, self._cache = self._rounds[size](self._weights, self._cache, taken, extras)
        for part in out:
            part.copy_to_host_async()
        return LaunchedRounds(out=out)

    def run_body(self, window: PackedWindow, /) -> Float32[Array, "rows width"]:
        """The layers alone; as many rows as the widest rung has, of which the window's come first."""
        rung = Rung(rows=window.rows.shape[0], tiles=window.tiles.shape[0])
        hidden, self._cache = self._body[rung](
            self._weights,
            self._cache,
            BodyInput(rows=window.rows, tiles=window.tiles, recurrence=window.recurrence),
        )
        return cast(Array, hidden)

    def run_emit(self, hidden: Float32[Array, "rows width"], window: PackedWindow) -> WindowResult:
        """Head and sampler alone. Blocks until the tokens are on the host."""
        return _fetched(self._run_emit(hidden, window), wants_logprobs=_wants_logprobs(window))

    def _run_emit(self, hidden: Float32[Array, "rows width"], window: PackedWindow) -> Emitted:
        size = window.emit_ints.shape[0]
        extras = self._extras.none(size) if window.extras is None else self._extras.some(window.extras)
        request = EmitInput(ints=window.emit_ints, floats=window.emit_floats)
        return cast(Emitted, self._emit[size](self._weights, hidden, request, extras))

    def compile_head(self, rows: int, /) -> Head:
        """The head without the sampler, from all hidden rows and `rows` row numbers to logits; for measurements."""
        compiled = self._blueprint.head(rows).compile()
        return lambda hidden, numbers: cast(Array, compiled(self._weights, hidden, numbers))

    @property
    def temporaries(self) -> int:
        """Bytes the hungriest program takes beside weights and cache, as its compiler counted them."""
        every = (*self._body.values(), *self._emit.values(), *self._rounds.values())
        return max(temporaries(program) for program in every)

    def page(self, number: int, /, *, layer: int) -> Array:
        """One page of one layer with attention; for proofs."""
        pages: Array = self._cache[layer]
        return pages[number]

    def state(self, number: int, /, *, layer: int) -> tuple[Array, ...]:
        """One state of one recurrent layer; for proofs."""
        cache: RecurrentState = self._cache[layer]
        return cache.matrices[number], cache.history[number]

    def clear_cache(self) -> None:
        """Forgets all keys, values and states; after a probe or a failed window."""
        try:
            # In place: an allocator that is given back so much at once keeps it, beside what it then hands out.
            self._cache = jax.block_until_ready(self._zeroed(self._cache))
        except (RuntimeError, ValueError):
            # A window that failed took the cache along, or left its error there. What is left is given back first:
            # there may be no room for two.
            self._cache = ()
            self._cache = self._blueprint.fresh_cache()

    def _compile(self, progress: Progress) -> tuple[dict[Rung, Any], dict[int, Any], dict[RoundsSize, Any]]:
        jobs = self._blueprint.all_lowered()
        texts = (job.as_text() for job in jobs.values())
        self.fingerprint = program_fingerprint(texts, options=options_for(self.mesh))
        done: dict[Any, Any] = compile_all(jobs, progress=progress)
        # Everything is proved against the smallest, and can do with them alone.
        for needed in (self.ladder.rungs[0], *self.ladder.needed_emits):
            if isinstance(done[needed], Unbuilt):
                raise ConfigError(
                    f"this device cannot run the model: of the smallest window {done[needed].reason}; "
                    "try another verifier.precision or verifier.kernels"
                )
        return (
            {rung: done[rung] for rung in self.ladder.rungs},
            {size: done[size] for size in self.ladder.emits},
            {size: done[size] for size in self.calls},
        )


def _wants_logprobs(window: PackedWindow) -> bool:
    return window.extras is not None and window.extras.wants_logprobs


def _fetched(emitted: Emitted, *, wants_logprobs: bool) -> WindowResult:
    return WindowResult(
        tokens=np.asarray(emitted.tokens),
        live=np.asarray(emitted.live),
        scores=np.asarray(emitted.scores),
        logprobs=jax.tree.map(np.asarray, emitted.logprobs) if wants_logprobs else None,
    )
