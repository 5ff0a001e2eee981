"""What windows of one size compute for tokens that are given: hidden rows, pages and states. For proofs.

Knows programs, not what their results are compared with.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float32, Int32, UInt8

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.layout import KeysAndValues, Recurrent
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.messages.generation import GenerateRequest
from deployments.verifier.packing import pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Programs
from deployments.verifier.slots import Slot
from deployments.verifier.states import States
from deployments.verifier.window import Rung

TRACED_TOKENS = 72
_PIECES = (1, 7, 3, 16, 5, 32, 2)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What came of one run.

    Attributes:
        cache: pages and states, as bytes.
        beside: per window the rows of the other slot, which always start at its first token.
    """

    hidden: Float32[np.ndarray, "tokens width"]
    cache: UInt8[np.ndarray, " bytes"]
    beside: tuple[Float32[np.ndarray, "_ width"], ...]

    @property
    def rows(self) -> int:
        return len(self.hidden) + sum(len(rows) for rows in self.beside)


def trace_of(
    programs: Programs,
    *,
    rung: Rung,
    tokens: Int32[np.ndarray, " tokens"],
    compared: int = TRACED_TOKENS,
    is_drafted: bool = False,
) -> Trace:
    """Runs the first tokens through windows of one size, in uneven pieces, beside another slot that fills the rest.

    Args:
        is_drafted: the pieces' ends are drafts, of which the last ones are refused and come again as they should be.
    """
    programs.clear_cache()
    needed = -(-len(tokens) // programs.shape.page_size)
    pages = tuple(range(SCRATCH_PAGE + 1, SCRATCH_PAGE + 1 + needed))
    slot = _slot(tokens[:compared], index=0, pages=pages)
    beside = _slot(tokens[::-1], index=1, pages=tuple(page + needed for page in pages))
    pieces = _Pieces(programs, rung=rung, slot=slot, beside=beside)
    hidden: list[np.ndarray] = []
    others: list[np.ndarray] = []
    while slot.cached < len(slot.tokens):
        piece = pieces.next(_PIECES[len(hidden) % len(_PIECES)], turn=len(hidden) if is_drafted else None)
        window = pack(
            piece.plan,
            rung=rung,
            emits=0,
            page_size=programs.shape.page_size,
            slot_pages=programs.slot_pages,
            room=programs.room,
        )
        states = np.asarray(programs.run_body(window))
        first = piece.plan.rows - len(piece.plan.spans[-1].tokens)
        hidden.append(states[first : first + piece.stays])
        others.append(states[:first])
        pieces.settle(piece)
    cache = [*_pages(programs, numbers=pages), *_states(programs, slot=slot)]
    return Trace(hidden=np.concatenate(hidden), cache=np.concatenate(cache), beside=tuple(others))


def _pages(programs: Programs, *, numbers: tuple[int, ...]) -> Iterator[UInt8[np.ndarray, " bytes"]]:
    for layer, kind in enumerate(programs.shape.layout):
        if isinstance(kind, KeysAndValues):
            yield from (_bytes(programs.page(number, layer=layer)) for number in numbers)


def _states(programs: Programs, *, slot: Slot) -> Iterator[UInt8[np.ndarray, " bytes"]]:
    for layer, kind in enumerate(programs.shape.layout):
        if isinstance(kind, Recurrent) and slot.state is not None:
            yield from (_bytes(part) for part in programs.state(slot.state.read, layer=layer))


def _bytes(x: Array) -> UInt8[np.ndarray, " bytes"]:
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A window: the other slot's rows, then some of the slot's, of which so many stay."""

    plan: StepPlan
    stays: int
    kept: int


class _Pieces:
    """Cuts a slot's tokens into windows. The other slot's rows come first, from its first token on in each window, so
    that the slot's own lie elsewhere in each."""

    def __init__(self, programs: Programs, *, rung: Rung, slot: Slot, beside: Slot) -> None:
        self._rung = rung
        self._slot = slot
        self._beside = beside
        self._room = programs.room
        self._states = None if self._room is None else States(self._room, page_size=programs.shape.page_size)
        if self._states is not None:
            self._states.enter(slot, key=None)

    def next(self, most: int, /, *, turn: int | None) -> _Piece:
        """At most so many rows of the slot's. Some are drafts, of which `turn` says how many stay; none if `None`."""
        slot, rung = self._slot, self._rung
        tokens = tuple(slot.tokens[slot.cached : slot.cached + min(most, rung.rows, rung.tiles * TILE_ROWS)])
        # The last tokens come without drafts, so that the states are complete in the end.
        is_last = slot.cached + len(tokens) == len(slot.tokens)
        drafts = 0 if turn is None or self._room is None or is_last else min(len(tokens) - 1, self._room.drafts)
        kept = 0 if turn is None else turn % (drafts + 1)
        stays = len(tokens) - drafts + kept
        tokens = (*tokens[:stays], *(int(token == 0) for token in tokens[stays:]))
        span = self._span(slot, start=slot.cached, tokens=tokens, drafts=drafts)
        room = min(rung.rows - len(tokens), (rung.tiles - span.tiles) * TILE_ROWS)
        return _Piece(plan=StepPlan(spans=(*self._other(room), span)), stays=stays, kept=kept)

    def settle(self, piece: _Piece, /) -> None:
        """After the window."""
        self._slot.cached += piece.stays
        if self._states is not None:
            self._states.settle(self._slot, kept=piece.kept)

    def _other(self, room: int) -> tuple[Span, ...]:
        if room == 0:
            return ()
        if self._states is not None:
            self._states.enter(self._beside, key=None)
        span = self._span(self._beside, start=0, tokens=tuple(self._beside.tokens[:room]), drafts=0)
        if self._states is not None:
            self._states.leave(self._beside)
        return (span,)

    def _span(self, slot: Slot, *, start: int, tokens: tuple[int, ...], drafts: int) -> Span:
        segments = () if self._states is None else self._states.segments(slot, rows=len(tokens), drafts=drafts)
        return Span(slot=slot, start=start, tokens=tokens, emits=0, segments=segments)


def _slot(tokens: Int32[np.ndarray, " tokens"], *, index: int, pages: tuple[int, ...]) -> Slot:
    ids = tuple(int(token) for token in tokens)
    request = GenerateRequest(request_id="probe", prompt_ids=ids, max_tokens=1)
    return Slot(index=index, request=request, tokens=list(ids), pages=pages, admitted_at=0.0)
