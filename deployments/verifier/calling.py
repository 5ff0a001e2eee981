"""When several windows go to the device as one call, and what it brings, window by window. Host only.

Decided once per call: all active slots decode, nobody waits, and no request asks for more than a plain draw. Whatever
the rule, the load and the back-off say at that moment holds for the whole call; else the next window is one of its own.
A request that arrives meanwhile waits for the call's end, and so does a cancellation: so calls begin small, and double
while nobody arrives.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from deployments.lm.attention import TILE_ROWS
from deployments.messages.generation import Decline, GenerateRequest
from deployments.verifier.asking import Allowance, DraftRounds
from deployments.verifier.calls import SLOT_FLOATS, SLOT_INTS, RoundsInput, RoundsOutput, RoundsSize
from deployments.verifier.delivery import Came, UnderWay
from deployments.verifier.drafts import Drafts
from deployments.verifier.history import MOST_ENDS, is_shaped
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import LaunchedRounds, Programs, WindowResult
from deployments.verifier.scheduler import Scheduler
from deployments.verifier.slots import Slot

_FIRST = 2


@dataclass(frozen=True, kw_only=True)
class CallUnderWay:
    """A call the device works on.

    Attributes:
        allowances: who takes part, in the order of their slots' numbers.
        indexes: those numbers; a slot that was cancelled since has none any more.
        kind: who drafts.
        follows, waited: as in `UnderWay`; no draft is waited for.
    """

    allowances: tuple[Allowance, ...]
    indexes: tuple[int, ...]
    call: LaunchedRounds
    rows: int
    kind: str
    follows: float | None
    launched_at: float
    waited: float = 0.0

    def windows(self, clock: Callable[[], float], /) -> Iterator[Came]:
        """Waits for the call; then one window after the other, each once the one before it was taken to the slots."""
        out = self.call.result()
        ran, seconds = int(out.ran), clock() - self.launched_at
        ends = [self.launched_at + seconds * (number + 1) / ran for number in range(ran)]
        for number, end in enumerate(ends):
            part = [each for each in zip(self.allowances, self.indexes, strict=True) if out.live[number, each[1]]]
            yield Came(
                flight=UnderWay(
                    plan=StepPlan(spans=tuple(_span(each.slot, out=out, at=(number, index)) for each, index in part)),
                    drafts=Drafts(declined=_declined(part, out=out, number=number), kind=self.kind),
                    window=None,
                    follows=ends[number - 1] if number else self.follows,
                    waited=0.0,
                    launched_at=ends[number - 1] if number else self.launched_at,
                    rows=self.rows,
                ),
                result=_result([index for _, index in part], out=out, number=number),
                at=end,
            )


class Calls:
    """Decides, and sends calls off.

    Args:
        most: windows in one call; 0 never makes one.
        kind: of the drafter on the device.
    """

    def __init__(
        self,
        *,
        programs: Programs,
        scheduler: Scheduler,
        rounds: DraftRounds,
        most: int,
        kind: str,
        shape: tuple[int, int],
    ) -> None:
        self._programs = programs
        self._scheduler = scheduler
        self._rounds = rounds
        self._most = most
        self._kind = kind
        self._slots, _ = shape
        self._histories = np.zeros(shape, np.int32)
        # Whose tokens each row holds, and how many of them.
        self._held: list[tuple[Slot | None, int]] = [(None, 0)] * self._slots
        self._next = _FIRST

    def launch(self, *, follows: float | None, clock: Callable[[], float]) -> CallUnderWay | None:
        """Sends a call off, if the next windows can be one."""
        if self._scheduler.waiting or not all(slot.is_decoding for slot in self._scheduler.active):
            self._next = _FIRST
            return None
        found = self._allowed() if self._most and self._programs.calls else None
        if found is None:
            return None
        size, allowances = found
        rounds = min(self._next, self._most)
        if not self._scheduler.reserve([(each.slot, _positions(each, rounds=rounds)) for each in allowances]):
            return None
        self._next = 2 * rounds
        for each in allowances:
            self._hold(each.slot)
        # The next call changes the histories, and comes after this one's end.
        slot_pages = self._programs.slot_pages
        taken = pack_call(allowances, histories=self._histories, slot_pages=slot_pages, rounds=rounds)
        # The device may begin before `launch_rounds` returns.
        launched = clock()
        return CallUnderWay(
            allowances=tuple(allowances),
            indexes=tuple(each.slot.index for each in allowances),
            call=self._programs.launch_rounds(taken, size=size),
            rows=size.rung.rows,
            kind=self._kind,
            follows=follows,
            launched_at=launched,
        )

    def _allowed(self) -> tuple[RoundsSize, Sequence[Allowance]] | None:
        active = self._scheduler.active
        if not all(_is_plain(slot.request) for slot in active):
            return None
        allowances = self._rounds.allowances(active)
        if not any(each.k for each in allowances):
            return None
        chains = [1 + each.k for each in allowances]
        rows, tiles = sum(chains), sum(-(-chain // TILE_ROWS) for chain in chains)
        usable = self._programs.ladder.rungs
        fitting = (size for size in self._programs.calls if size.rung in usable and size.emits >= rows)
        size = next((size for size in fitting if size.rung.holds(rows=rows, tiles=tiles)), None)
        return None if size is None else (size, allowances)

    def _hold(self, slot: Slot) -> None:
        """Only what is new is written: a long text is not gone through again for a few tokens."""
        held, known = self._held[slot.index]
        first = known if held is slot else 0
        self._histories[slot.index, first : len(slot.tokens)] = slot.tokens[first:]
        self._held[slot.index] = (slot, len(slot.tokens))


def pack_call(
    allowances: Sequence[Allowance], /, *, histories: Int32[np.ndarray, "slots context"], slot_pages: int, rounds: int
) -> RoundsInput:
    """What a call takes; each slot's row is its number.

    Args:
        histories: what drafts are made from; tokens of the slots, as many as they have.
    """
    slots = len(histories)
    ints = np.zeros((slots, SLOT_INTS), np.int32)
    floats = np.zeros((slots, SLOT_FLOATS), np.float32)
    pages = np.zeros((slots, slot_pages), np.int32)
    ends = np.full((slots, MOST_ENDS), -1, np.int32)
    for each in allowances:
        slot, request = each.slot, each.slot.request
        row, sampling = slot.index, request.sampling
        pages[row, : len(slot.pages)] = slot.pages
        seed = np.uint32(sampling.seed & 0xFFFFFFFF).view(np.int32)
        ints[row] = (len(slot.tokens), slot.remaining, each.k, sampling.top_k, seed, request.choice)
        floats[row] = (sampling.temperature, sampling.top_p, sampling.min_p)
        if not request.ignore_eos:
            ends[row, : len(request.end_ids)] = request.end_ids
    return RoundsInput(
        histories=histories, pages=pages, ints=ints, floats=floats, ends=ends, most=np.asarray(rounds, np.int32)
    )


def _is_plain(request: GenerateRequest) -> bool:
    return request.logprobs is None and not is_shaped(request) and max(request.end_ids, default=0) < 2**31


def _positions(allowance: Allowance, *, rounds: int) -> int:
    """How many positions so many rounds can write: never that of the reply's last token, as no row follows it."""
    slot = allowance.slot
    return min(len(slot.tokens) + rounds * (allowance.k + 1), len(slot.tokens) + slot.remaining) - 1


def _span(slot: Slot, *, out: RoundsOutput, at: tuple[int, int]) -> Span:
    count = int(out.drafted[at])
    drafts = tuple(np.asarray(out.drafts)[at][:count].tolist())
    return Span(slot=slot, start=slot.cached, tokens=(slot.tokens[-1], *drafts), emits=1 + count)


def _declined(part: Sequence[tuple[Allowance, int]], *, out: RoundsOutput, number: int) -> dict[str, Decline]:
    """Why those without drafts had none."""
    return {
        each.slot.request.request_id: each.declined
        or (Decline.LAST_TOKEN if each.slot.remaining <= 1 else Decline.NO_GUESS)
        for each, index in part
        if not out.drafted[number, index]
    }


def _result(indexes: Sequence[int], *, out: RoundsOutput, number: int) -> WindowResult:
    """As a window of its own would have brought it."""
    counts = [int(out.drafted[number, index]) + 1 for index in indexes]
    lives = [np.arange(count) < out.live[number, index] for index, count in zip(indexes, counts, strict=True)]
    tokens, scores = (
        np.concatenate([np.asarray(part)[number, index, :count] for index, count in zip(indexes, counts, strict=True)])
        for part in (out.tokens, out.scores)
    )
    return WindowResult(tokens=tokens, live=np.concatenate(lives), scores=scores)
