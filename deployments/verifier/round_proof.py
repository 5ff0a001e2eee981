"""Proves at start-up, on the serving executables and this device, that calls of several rounds compute the same bits.

The same texts go through a call as through windows of their own with the host's drafts: drafts, draws, their scores and
the cache's pages must be equal bit by bit. Part of what the drafters copy is what the network says next, so that some
drafts are kept, and part is not. A call that differs or cannot be run is refused; windows of their own remain.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.drafting.ngram import NgramIndex, NgramSettings
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.asking import Allowance
from deployments.verifier.calling import CallUnderWay, pack_call
from deployments.verifier.calls import RoundsSize
from deployments.verifier.packing import pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Programs, Progress, WindowResult
from deployments.verifier.slots import Slot

_SETTINGS = (
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.8, top_p=0.9, seed=7),
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=1.0, top_k=20, min_p=0.01, seed=11),
)
_PROMPT = 40
_WRONG_EVERY = 6

type _Seen = dict[str, object]


def refused_calls(
    programs: Programs, *, drafter: NgramSettings, vocabulary: int, progress: Progress
) -> dict[RoundsSize, str]:
    """Why calls of each size may not serve, for those that may not. Uses the cache and leaves it empty."""
    refused: dict[RoundsSize, str] = {}
    for size in programs.calls:
        progress(f"proving that calls of {size.most} windows of {size.rung.rows} rows compute the same bits")
        # Whatever a device may say: what cannot be run cannot be proved.
        try:
            difference = _Proof(programs, size=size, drafter=drafter, vocabulary=vocabulary).difference()
        except Exception as error:
            difference = f"they could not be run ({type(error).__name__}: {error})"
        if difference is not None:
            refused[size] = difference
    programs.clear_cache()
    return refused


class _Proof:
    """One size: so many slots that chains of middling length fill its windows."""

    def __init__(self, programs: Programs, *, size: RoundsSize, drafter: NgramSettings, vocabulary: int) -> None:
        self._programs = programs
        self._size = size
        self._drafter = drafter
        shape, rung = programs.shape, size.rung
        reply = min(size.most * (size.longest + 1), programs.slot_pages * shape.page_size - 2)
        length = min(_PROMPT, programs.slot_pages * shape.page_size - reply)
        pages = -(-(length + reply) // shape.page_size)
        most = min(rung.rows // TILE_ROWS, programs.slots, (shape.pages - 1) // pages)
        self._count = max(most, 1)
        self._k = min(size.longest, rung.rows // self._count - 1)
        tokens = np.random.default_rng(rung.rows).integers(0, vocabulary, (self._count, length))
        self._prompts = [tuple(row) for row in tokens.tolist()]
        self._reply = reply
        self._pages = pages

    def difference(self) -> str | None:
        """What differs first, in words; `None` when no bit does."""
        told = self._told()
        slots = self._prepared()
        wanted = list(self._in_windows(slots, told=told))
        pages = self._cached(slots)
        slots = self._prepared()
        found = list(self._in_a_call(slots, told=told))
        if len(found) != len(wanted):
            return f"there were {len(found)} windows in place of {len(wanted)}"
        for number, (own, other) in enumerate(zip(wanted, found, strict=True)):
            name = next((name for name in own if own[name] != other[name]), None)
            if name is not None:
                return f"{name} of window {number} differ"
        return None if pages == self._cached(slots) else "pages differ"

    def _prepared(self) -> list[Slot]:
        """Slots with their prompts in an empty cache, but for the last token."""
        self._programs.clear_cache()
        slots = [self._slot(index) for index in range(self._count)]
        for slot in slots:
            while not slot.missing <= 1:
                chunk = tuple(slot.tokens[slot.cached : len(slot.tokens) - 1][:TILE_ROWS])
                self._run([Span(slot=slot, start=slot.cached, tokens=chunk, emits=0)])
                slot.cached += len(chunk)
        return slots

    def _slot(self, index: int) -> Slot:
        request = GenerateRequest(
            request_id=str(index),
            prompt_ids=self._prompts[index],
            max_tokens=self._reply - index % 3,
            sampling=_SETTINGS[index % len(_SETTINGS)],
        )
        first = SCRATCH_PAGE + 1 + index * self._pages
        pages = tuple(range(first, first + self._pages))
        return Slot(index=index, request=request, tokens=list(request.prompt_ids), pages=pages, admitted_at=0.0)

    def _told(self) -> list[list[int]]:
        """What each drafter is told the prompt was: most of what the network will say stands in it."""
        slots = self._prepared()
        for _ in range(self._size.most * (self._k + 1)):
            if going := [slot for slot in slots if slot.remaining]:
                self._advance([_span(slot, drafts=()) for slot in going])
        told = []
        for slot, prompt in zip(slots, self._prompts, strict=True):
            n = self._drafter.max_n
            text = [*prompt[-n:], *slot.tokens[len(prompt) :]]
            text = text[: max(len(prompt) - n, 0)]
            for place in range(n + _WRONG_EVERY, len(text), _WRONG_EVERY):
                text[place] = prompt[place]
            told.append([*text, *prompt[len(text) :]])
        return told

    def _in_windows(self, slots: Sequence[Slot], *, told: list[list[int]]) -> Iterator[_Seen]:
        indexes = [NgramIndex(min_n=self._drafter.min_n, max_n=self._drafter.max_n) for _ in slots]
        for index, text in zip(indexes, told, strict=True):
            index.extend(tuple(text))
        for _ in range(self._size.most):
            spans = []
            for slot, index in zip(slots, indexes, strict=True):
                if slot.remaining:
                    k = min(self._k, self._drafter.max_k, slot.remaining - 1)
                    spans.append(_span(slot, drafts=index.continuation(k=k) if k else ()))
            if not spans:
                return
            result = self._advance(spans)
            for span in spans:
                index = indexes[span.slot.index]
                index.extend(tuple(span.slot.tokens[span.start + 1 :]))
            yield _seen(spans, result=result)

    def _in_a_call(self, slots: Sequence[Slot], *, told: list[list[int]]) -> Iterator[_Seen]:
        programs, size = self._programs, self._size
        histories = np.zeros((programs.slots, programs.slot_pages * programs.shape.page_size), np.int32)
        for slot, text in zip(slots, told, strict=True):
            histories[slot.index, : len(text)] = text
        allowances = tuple(Allowance(slot=slot, k=self._k) for slot in slots)
        taken = pack_call(allowances, histories=histories, slot_pages=programs.slot_pages, rounds=size.most)
        under_way = CallUnderWay(
            allowances=allowances,
            indexes=tuple(slot.index for slot in slots),
            call=programs.launch_rounds(taken, size=size),
            rows=size.rung.rows,
            kind="",
            follows=None,
            launched_at=0.0,
        )
        for flight, result, _ in under_way.windows(lambda: 0.0):
            assert result is not None
            _take(flight.plan.spans, result=result)
            yield _seen(flight.plan.spans, result=result)

    def _advance(self, spans: Sequence[Span]) -> WindowResult:
        result = self._run(spans)
        assert result is not None
        _take(spans, result=result)
        return result

    def _run(self, spans: Sequence[Span]) -> WindowResult | None:
        plan, programs = StepPlan(spans=tuple(spans)), self._programs
        window = pack(
            plan,
            rung=self._size.rung,
            emits=self._size.emits if plan.emits else 0,
            page_size=programs.shape.page_size,
            slot_pages=programs.slot_pages,
        )
        return programs.launch(window).result()

    def _cached(self, slots: Sequence[Slot]) -> bytes:
        """All pages of the slots, of every layer."""
        numbers = [page for slot in slots for page in slot.pages]
        layers = range(len(self._programs.shape.layout))
        return b"".join(
            np.asarray(self._programs.page(page, layer=layer)).tobytes() for layer in layers for page in numbers
        )


def _span(slot: Slot, *, drafts: tuple[int, ...]) -> Span:
    return Span(slot=slot, start=slot.cached, tokens=(slot.tokens[-1], *drafts), emits=1 + len(drafts))


def _take(spans: Sequence[Span], *, result: WindowResult) -> None:
    """What counts becomes part of the replies."""
    row = 0
    for span in spans:
        live = int(result.live[row : row + span.emits].sum())
        span.slot.extend(tuple(result.tokens[row : row + live].tolist()))
        span.slot.cached = len(span.slot.tokens) - 1
        row += span.emits


def _seen(spans: Sequence[Span], *, result: WindowResult) -> _Seen:
    count = sum(span.emits for span in spans)
    return {
        "rows": [(span.slot.index, span.start, span.tokens) for span in spans],
        "draws": result.tokens[:count].tolist(),
        "kept drafts": result.live[:count].tolist(),
        "scores": result.scores[:count].tobytes(),
    }
