"""A network one can compute by hand: programs that remember tokens in pages and draw from all they read back.

Each draw depends on the whole prefix as it stands in the slot's pages, on the seed, the choice and the position. So a
row that is written to a wrong place, a page that two slots share, or a refused draft that is read again changes the
reply, exactly as with a real cache. With states it is recurrent as well: the prefix that a row's state holds must be
the one in its slot's pages. No JAX is involved, and a window costs microseconds.
"""

import hashlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.layout import SCRATCH_STATE
from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.lm.recurrence import Recurrence
from deployments.messages.generation import FinishReason, GenerateRequest
from deployments.verifier.asking import Rules
from deployments.verifier.drafts import DraftSource
from deployments.verifier.engine import Engine, EngineSettings
from deployments.verifier.ladder import build_ladder
from deployments.verifier.packing import PackedWindow
from deployments.verifier.programs import Launched, Programs, WindowResult
from deployments.verifier.states import StateRoom, States
from deployments.verifier.window import TILE_FIELDS
from tests.verifier.serving import Reply, Tallies

VOCABULARY = 5


def next_token(prefix: Sequence[int], *, seed: int, choice: int) -> int:
    """What the network says after `prefix`; few tokens, so that guesses are often right."""
    digest = hashlib.blake2b(bytes(prefix), digest_size=8, key=seed.to_bytes(4) + choice.to_bytes(4)).digest()
    return int.from_bytes(digest) % VOCABULARY


def expected(request: GenerateRequest) -> Reply:
    """The reply, from the definition."""
    tokens = list(request.prompt_ids)
    reply = Reply(finish=FinishReason.LENGTH)
    while len(reply.tokens) < request.max_tokens:
        token = next_token(tokens, seed=request.sampling.seed, choice=request.choice)
        if token in request.end_ids:
            reply.finish = FinishReason.STOP
            break
        tokens.append(token)
        reply.tokens.append(token)
    return reply


class _Recalled(Launched):
    """A window that is done, or has failed, before anyone asks."""

    def __init__(self, *, result: WindowResult | None, failure: Exception | None) -> None:
        self._result = result
        self._failure = failure

    def result(self) -> WindowResult | None:
        if self._failure is not None:
            raise self._failure
        return self._result


class RecallingPrograms(Programs):
    """`Programs` of that network; recurrent if there is a `room` of states."""

    def __init__(
        self,
        *,
        slots: int,
        context: int,
        page_size: int,
        draft_k: int,
        rows: tuple[int, ...],
        room: StateRoom | None = None,
    ) -> None:
        self.ladder = build_ladder(rows, slots=slots, draft_k=draft_k)
        self.slot_pages = context // page_size
        self.pages = slots * self.slot_pages + 1
        self.page_size = page_size
        self.room = room
        self.windows = 0
        self.replayed = 0
        self.most_drafts = 0
        self.failures: list[Exception] = []
        self.clear_cache()

    def clear_cache(self) -> None:
        self._memory = np.full((self.pages, self.page_size), 255, np.uint8)
        if self.room is not None:
            self._states: list[tuple[int, ...] | None] = [None] * self.room.states
            self._states[self.room.empty] = ()
            self._pending = [255] * self.room.pending

    def launch(self, window: PackedWindow, /) -> Launched:
        return _Recalled(result=self._run(window), failure=self.failures.pop() if self.failures else None)

    def _run(self, window: PackedWindow) -> WindowResult | None:
        self.windows += 1
        for token, _, page, offset, _ in window.rows.tolist():
            self._memory[page, offset] = token
        if self.room is not None:
            self._recur(window, room=self.room)
        count = len(window.emit_ints)
        self.most_drafts = max(self.most_drafts, int((window.emit_ints[:, 2] == 0).sum()))
        if count == 0:
            return None
        draws = np.asarray([self._draw(window, emit=emit) for emit in range(count)], np.int32)
        live = np.zeros(count, bool)
        for emit, (_, token, first, *_) in enumerate(window.emit_ints.tolist()):
            live[emit] = first == 1 or (live[emit - 1] and draws[emit - 1] == token)
        return WindowResult(tokens=draws, live=live, scores=np.zeros(count, np.float32))

    def _recur(self, window: PackedWindow, *, room: StateRoom) -> None:
        """Runs the segments over states that are the tokens themselves, and then keeps the drafts."""
        assert window.recurrence is not None
        rows = window.rows[:, 0].tolist()
        recurrence = Recurrence.unpacked(window.recurrence, rows=len(rows))
        self._seen: dict[int, tuple[int, ...]] = {}
        for first, count, before, after in np.asarray(recurrence.segments).tolist():
            state = self._states[before]
            for number in range(first, first + count):
                assert state is not None, "a state is read that nobody wrote"
                is_new = number >= room.pending
                state = (*state, rows[number - room.pending] if is_new else self._pending[number])
                self.replayed += not is_new
                if is_new:
                    self._seen[number - room.pending] = state
            if count:
                assert after != room.empty
                self._states[after] = state if after != SCRATCH_STATE else None
        for row, place in enumerate(np.asarray(recurrence.places).tolist()):
            self._pending[place] = rows[row]

    def _draw(self, window: PackedWindow, *, emit: int) -> int:
        row, _, _, _, seed, choice, position = window.emit_ints[emit].tolist()
        if position == 0:
            return 0  # padding: nothing is ever drawn for the first position
        tile, lane = divmod(int(window.rows[row, 4]), TILE_ROWS)
        assert window.tiles[tile, lane] == row
        assert window.tiles[tile, TILE_ROWS + lane] == window.rows[row, 1] == position - 1
        text = self._memory[window.tiles[tile, TILE_FIELDS:]].reshape(-1)[:position]
        if self.room is not None:
            assert self._seen[row] == tuple(text.tolist()), "the state is not that of the row's prefix"
        return next_token(text.tolist(), seed=seed & 0xFFFFFFFF, choice=choice)


def recalling_engine(
    drafts: DraftSource,
    *,
    slots: int = 3,
    context: int = 64,
    page_size: int = 4,
    draft_k: int = 3,
    draft_rows: int | None = None,
    rows: tuple[int, ...] = (8, 16),
    metrics: Tallies | None = None,
    pages: int | None = None,
    caches_prefixes: bool = True,
    reserve: int = 256,
    prefill: int = 32,
    kept_states: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    rules: Rules | None = None,
) -> tuple[Engine, RecallingPrograms]:
    """An engine on it; `pages` makes the cache smaller than the slots could use, `kept_states` makes it recurrent."""
    room = None if kept_states is None else StateRoom(slots=slots, drafts=draft_k, kept=kept_states)
    programs = RecallingPrograms(
        slots=slots, context=context, page_size=page_size, draft_k=draft_k, rows=rows, room=room
    )
    allocator = PageAllocator(pages or programs.pages, page_size=page_size)
    engine = Engine(
        EngineSettings(
            slots=slots,
            context=context,
            draft_k=draft_k,
            draft_rows=draft_rows,
            page_size=page_size,
            reserve_tokens=reserve,
            prefill_budget=prefill,
        ),
        programs=programs,
        allocator=allocator,
        prefix=PrefixCache(allocator, root=b"recalling") if caches_prefixes else None,
        states=None if room is None else States(room, page_size=page_size),
        clock=clock,
        rules=rules,
        drafts=drafts,
        vocabulary=VOCABULARY,
        metrics=metrics or Tallies(),
    )
    return engine, programs
