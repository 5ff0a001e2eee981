"""Who is in the batch, and which rows the next window holds. Host only and pure: no clock, no device, no sockets."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import PageAllocator
from deployments.messages.errors import ContextTooLong
from deployments.messages.generation import GenerateRequest
from deployments.verifier.slots import Slot


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of one slot.

    Attributes:
        start: the absolute position of the first row.
        tokens: one per row.
        emits: how many of the last rows draw a token: none while a prompt goes on, one at its end, one more than
            there are drafts when decoding.
    """

    slot: Slot
    start: int
    tokens: tuple[int, ...]
    emits: int

    @property
    def tiles(self) -> int:
        return -(-len(self.tokens) // TILE_ROWS)

    @property
    def drafts(self) -> int:
        return max(self.emits - 1, 0)


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The next window, span by span."""

    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(len(span.tokens) for span in self.spans)

    @property
    def tiles(self) -> int:
        return sum(span.tiles for span in self.spans)

    @property
    def emits(self) -> int:
        return sum(span.emits for span in self.spans)

    @property
    def speculates(self) -> bool:
        return any(span.drafts for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a window and the batch can hold."""

    slots: int
    context: int
    rows: int
    tiles: int


class Scheduler:
    """First come, first served: a request waits until a slot and the pages for its whole reply are free."""

    def __init__(self, limits: Limits, *, allocator: PageAllocator) -> None:
        self._limits = limits
        self._allocator = allocator
        self._waiting: deque[GenerateRequest] = deque()
        self._slots: dict[int, Slot] = {}
        self._turn = 0

    @property
    def active(self) -> tuple[Slot, ...]:
        return tuple(self._slots[index] for index in sorted(self._slots))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def pages_in_use(self) -> int:
        return self._allocator.in_use

    @property
    def is_idle(self) -> bool:
        return not self._slots and not self._waiting

    def submit(self, request: GenerateRequest, /) -> None:
        """Queues a request.

        Raises:
            ContextTooLong: prompt and `max_tokens` can never fit.
        """
        wanted = len(request.prompt_ids) + request.max_tokens
        if wanted > self._limits.context:
            raise ContextTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens and {request.max_tokens} more were asked for, "
                f"together {wanted}; the context holds {self._limits.context}",
                "max_tokens",
            )
        self._waiting.append(request)

    def admit(self, *, now: float) -> tuple[Slot, ...]:
        """Moves waiting requests to slots while both a slot and enough pages are free."""
        admitted: list[Slot] = []
        while self._waiting and len(self._slots) < self._limits.slots:
            request = self._waiting[0]
            pages = self._allocator.pages_for(len(request.prompt_ids) + request.max_tokens)
            if pages > self._allocator.free:
                break
            self._waiting.popleft()
            index = min(set(range(self._limits.slots)) - self._slots.keys())
            slot = Slot(
                index=index,
                request=request,
                tokens=list(request.prompt_ids),
                pages=self._allocator.take(pages),
                admitted_at=now,
            )
            self._slots[index] = slot
            admitted.append(slot)
        return tuple(admitted)

    def plan(self, drafts: Mapping[str, tuple[int, ...]], /) -> StepPlan:
        """Decoding rows first, with their drafts; then prompts, oldest first, as far as rows and tiles go.

        Drafts are cut short before a decoding request goes without a row, and the oldest prompt always has one.

        Where not all fit, whoever is left out comes first in the next window.
        """
        room = _Room(rows=self._limits.rows, tiles=self._limits.tiles)
        spans: list[Span] = []
        decoding = [slot for slot in self.active if slot.is_decoding]
        prompts = sorted((slot for slot in self.active if not slot.is_decoding), key=lambda slot: slot.admitted_at)
        decoding.sort(key=lambda slot: (slot.index - self._turn) % self._limits.slots)
        kept_back = min(len(prompts), 1)
        for number, slot in enumerate(decoding, start=1):
            if min(room.rows, room.tiles) > kept_back:
                others = len(decoding) - number + kept_back
                spans.append(room.take(_decoding_span(slot, drafts=drafts, room=room.beside(others))))
            else:
                self._turn = slot.index
                break
        for slot in prompts:
            if room.lanes:
                spans.append(room.take(_prompt_span(slot, room=room.lanes)))
        return StepPlan(spans=tuple(spans))

    def release(self, slot: Slot, /) -> None:
        """Frees a slot and its pages."""
        del self._slots[slot.index]
        self._allocator.give_back(slot.pages)

    def cancel(self, request_id: str, /) -> bool:
        """Forgets a request wherever it is; says whether it was there."""
        for slot in self._slots.values():
            if slot.request.request_id == request_id:
                self.release(slot)
                return True
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                return True
        return False

    def drop_all(self) -> Sequence[str]:
        """Forgets every request and returns their ids; for an engine that cannot go on."""
        ids = [slot.request.request_id for slot in self.active] + [request.request_id for request in self._waiting]
        for slot in self.active:
            self.release(slot)
        self._waiting.clear()
        return ids

    def check_integrity(self) -> None:
        """Raises `AssertionError` unless every page is owned once and every slot's counts agree."""
        self._allocator.check_integrity([slot.pages for slot in self.active])
        for slot in self.active:
            if slot.cached >= len(slot.tokens):
                raise AssertionError(f"slot {slot.index} has {slot.cached} cached of {len(slot.tokens)} tokens")
            if len(slot.tokens) > len(slot.pages) * self._allocator.page_size:
                raise AssertionError(f"slot {slot.index} has more tokens than its pages hold")


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


def _decoding_span(slot: Slot, *, drafts: Mapping[str, tuple[int, ...]], room: int) -> Span:
    guess = drafts.get(slot.request.request_id, ())[: room - 1]
    return Span(slot=slot, start=slot.cached, tokens=(slot.tokens[-1], *guess), emits=1 + len(guess))


def _prompt_span(slot: Slot, *, room: int) -> Span:
    chunk = tuple(slot.tokens[slot.cached : slot.cached + room])
    ends = slot.cached + len(chunk) == len(slot.tokens)
    return Span(slot=slot, start=slot.cached, tokens=chunk, emits=1 if ends else 0)
