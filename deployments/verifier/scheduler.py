"""Who is in the batch, and which rows the next window holds. Host only and pure: no clock, no device, no sockets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.lm.attention import TILE_ROWS
from deployments.messages.errors import ContextTooLong
from deployments.messages.generation import GenerateRequest
from deployments.verifier.batch import Changes, Limits
from deployments.verifier.budget import prompt_rows, share
from deployments.verifier.paging import Paging
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.slots import Slot
from deployments.verifier.waiting import WaitingLine

_NO_SLOT = -1


class Scheduler:
    """Who runs, and on which pages.

    A request waits until a slot is free, and pages for its tokens and the beginning of its reply. Replies grow page by
    page; when there are no more, whoever is least senior makes room and waits again with its tokens. The most senior
    request is never preempted while there is another, and no request may be larger than the cache: it always ends.
    """

    def __init__(self, limits: Limits, *, paging: Paging) -> None:
        self._limits = limits
        self._paging = paging
        self._waiting = WaitingLine()
        self._slots: dict[int, Slot] = {}
        self._arrivals = 0
        self._turn = 0

    @property
    def active(self) -> tuple[Slot, ...]:
        return tuple(self._slots[index] for index in sorted(self._slots))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def pages_in_use(self) -> int:
        return self._paging.in_use

    @property
    def pages_cached(self) -> int:
        """Pages that nobody holds and whose content can still be found."""
        return self._paging.kept

    @property
    def pages_evicted(self) -> int:
        """How many of those were lost to others so far."""
        return self._paging.evictions

    @property
    def is_idle(self) -> bool:
        return not self._slots and not self._waiting

    def submit(self, request: GenerateRequest, /, *, now: float = 0.0) -> None:
        """Queues a request.

        Raises:
            ContextTooLong: prompt and `max_tokens` can never fit.
        """
        wanted = len(request.prompt_ids) + request.max_tokens
        room = min(self._limits.context, self._paging.capacity)
        if wanted > room:
            raise ContextTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens and {request.max_tokens} more were asked for, "
                f"together {wanted}; the context holds {room}",
                "max_tokens",
            )
        self._arrivals += 1
        slot = Slot(
            index=_NO_SLOT,
            request=request,
            tokens=list(request.prompt_ids),
            pages=(),
            admitted_at=now,
            seniority=(now + request.priority * self._limits.priority_step, self._arrivals),
            expires_at=None if request.deadline_s is None else now + request.deadline_s,
        )
        self._waiting.add(slot)

    def prepare(self, *, now: float) -> Changes:
        """Settles who is in the next window: lets replies grow, admits others, gives up who has waited too long."""
        preempted = self._grow()
        entered = self._admit()
        expired = self._waiting.take_expired(now=now)
        for slot in self.active:
            if not slot.is_decoding:
                self._paging.catch_up(slot)
        admitted = tuple(slot for slot in entered if not slot.preemptions)
        for slot in admitted:
            slot.admitted_at = now
        resumed = tuple(slot for slot in entered if slot.preemptions)
        return Changes(expired=expired, preempted=preempted, admitted=admitted, resumed=resumed)

    def plan(self, drafts: Mapping[str, tuple[int, ...]], /) -> StepPlan:
        """Decoding rows first, with their drafts; then prompts, as far as rows and tiles go.

        Drafts are cut short before a decoding request goes without a row, and the most senior prompt always has one.
        Where not all fit, whoever is left out comes first in the next window.
        """
        room = _Room(rows=self._limits.rungs[-1], tiles=self._limits.tiles)
        spans: list[Span] = []
        decoding = [slot for slot in self.active if slot.is_decoding]
        prompts = self._prompts()
        decoding.sort(key=lambda slot: (slot.index - self._turn) % self._limits.slots)
        kept_back = min(len(prompts), 1)
        for number, slot in enumerate(decoding, start=1):
            if min(room.rows, room.tiles) > kept_back:
                guess = drafts.get(slot.request.request_id, ())[: room.beside(len(decoding) - number + kept_back) - 1]
                spans.append(room.take(self._decoding_span(slot, guess=guess)))
            else:
                self._turn = slot.index
                break
        rows = self._prompt_rows(room.rows, decoding=len(decoding) > 0)
        for slot, count in zip(prompts, share([slot.missing for slot in prompts], rows=rows), strict=True):
            if min(count, room.lanes):
                spans.append(room.take(self._prompt_span(slot, rows=min(count, room.lanes))))
        return StepPlan(spans=tuple(spans))

    def reserve(self, positions: Sequence[tuple[Slot, int]], /) -> bool:
        """Gives slots pages for so many positions each, all or nothing; says whether it did."""
        return self._paging.extend_all(positions)

    def holds(self, slot: Slot, /) -> bool:
        """Whether the slot is still in the batch."""
        return self._slots.get(slot.index) is slot

    def settle(self, slot: Slot, /, *, kept: int = 0) -> None:
        """After a window of which so many drafts were kept: what the slot has completed can be found by others."""
        self._paging.settle(slot, kept=kept)

    def release(self, slot: Slot, /) -> None:
        """Frees a slot and its pages."""
        del self._slots[slot.index]
        self._paging.leave(slot)
        slot.index = _NO_SLOT

    def preempt(self, slot: Slot, /) -> None:
        """Takes slot and pages away; the request waits in front with its tokens, and its stream pauses."""
        self.release(slot)
        slot.preemptions += 1
        self._waiting.add(slot)

    def cancel(self, request_id: str, /) -> bool:
        """Forgets a request wherever it is; says whether it was there."""
        for slot in self._slots.values():
            if slot.request.request_id == request_id:
                self.release(slot)
                return True
        return self._waiting.remove(request_id)

    def drop_all(self) -> Sequence[str]:
        """Forgets every request and all that is cached, and returns the requests' ids; for an engine that failed."""
        ids = [slot.request.request_id for slot in (*self.active, *self._waiting)]
        for slot in self.active:
            self.release(slot)
        self._waiting.clear()
        self._paging.forget_all()
        return ids

    def check_integrity(self) -> None:
        """Raises `AssertionError` unless every page has the holders it should, and every slot's counts agree."""
        for slot in self.active:
            if slot.cached >= len(slot.tokens):
                raise AssertionError(f"slot {slot.index} has {slot.cached} cached of {len(slot.tokens)} tokens")
        self._paging.check_integrity(self.active)
        if any(slot.pages or slot.index != _NO_SLOT for slot in self._waiting):
            raise AssertionError("a request that waits has pages or a slot")

    def _grow(self) -> tuple[Slot, ...]:
        """A page for every next row, the most senior slot first; the least senior ones make room."""
        preempted: list[Slot] = []
        for slot in sorted(self.active, key=_seniority):
            while slot.is_decoding and self._paging.extend(slot, positions=len(slot.tokens)) < len(slot.tokens):
                victim = max(self.active, key=_seniority)
                preempted.append(victim)
                self.preempt(victim)
        return tuple(preempted)

    def _admit(self) -> tuple[Slot, ...]:
        """Moves waiting requests to slots while both a slot and enough pages are free; nobody overtakes."""
        admitted: list[Slot] = []
        while self._waiting and len(self._slots) < self._limits.slots:
            slot = self._waiting.first()
            # Whoever runs should find a page for its next tokens: else the newcomer is soon preempted for it.
            spare = sum(self._paging.may_grow(other) for other in self._slots.values())
            positions = len(slot.tokens) + min(slot.remaining, self._limits.reserve)
            if not self._paging.enter(slot, positions=positions, spare=spare):
                break
            self._waiting.take_first()
            slot.index = min(set(range(self._limits.slots)) - self._slots.keys())
            self._slots[slot.index] = slot
            admitted.append(slot)
        return tuple(admitted)

    def _prompts(self) -> list[Slot]:
        """Prompts that should run, the most senior first: of those that need the same page next, one computes it."""
        prompts: list[Slot] = []
        claimed: set[bytes] = set()
        for slot in sorted((slot for slot in self.active if not slot.is_decoding), key=_seniority):
            key = self._paging.next_key(slot)
            if key not in claimed:
                prompts.append(slot)
            if key is not None:
                claimed.add(key)
        return prompts

    def _prompt_rows(self, left: int, /, *, decoding: bool) -> int:
        if not decoding:
            return left
        widest = self._limits.rungs[-1]
        wanted = prompt_rows(decoding=widest - left, most=self._limits.prompt_rows, rungs=self._limits.rungs)
        return min(left, max(wanted, 1))

    def _decoding_span(self, slot: Slot, *, guess: tuple[int, ...]) -> Span:
        """The last token and its drafts, of which those go that would need a page nobody can spare."""
        positions = self._paging.extend(slot, positions=len(slot.tokens) + len(guess))
        guess = guess[: positions - len(slot.tokens)]
        rows = 1 + len(guess)
        segments = self._paging.segments(slot, rows=rows, drafts=len(guess))
        tokens = (slot.tokens[-1], *guess)
        return Span(slot=slot, start=slot.cached, tokens=tokens, emits=rows, segments=segments)

    def _prompt_span(self, slot: Slot, *, rows: int) -> Span:
        chunk = tuple(slot.tokens[slot.cached : slot.cached + rows])
        ends = slot.cached + len(chunk) == len(slot.tokens)
        segments = self._paging.segments(slot, rows=len(chunk), drafts=0)
        return Span(slot=slot, start=slot.cached, tokens=chunk, emits=1 if ends else 0, segments=segments)


@dataclass(kw_only=True)
class _Room:
    """What is left of a window while it is being filled."""

    rows: int
    tiles: int

    @property
    def lanes(self) -> int:
        """The most rows one more span may have."""
        return min(self.rows, self.tiles * TILE_ROWS)

    def beside(self, others: int, /) -> int:
        """The same when `others` more spans should still find room: drafts never take another request's row."""
        return max(min(self.rows - others, (self.tiles - others) * TILE_ROWS), 1)

    def take(self, span: Span, /) -> Span:
        self.rows -= len(span.tokens)
        self.tiles -= span.tiles
        return span


def _seniority(slot: Slot) -> tuple[float, int]:
    return slot.seniority
