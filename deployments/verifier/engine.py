"""The loop that serves: admit, ask for drafts, run one window, hand out what it drew. One thread owns all of it.

Knows requests and windows; not Serve, not HTTP. `step` is one turn, for tests and for the thread alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.lm.cache.pages import PageAllocator
from deployments.messages.errors import InvalidRequest, OutriderError
from deployments.messages.generation import Decline, FinishReason, GenerateRequest, TokenChunk
from deployments.messages.metrics import Metrics
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted
from deployments.verifier.packing import pack
from deployments.verifier.programs import Programs, WindowResult
from deployments.verifier.scheduler import Limits, Scheduler, Span, StepPlan
from deployments.verifier.slots import Slot


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Something for whoever waits for a request: a chunk, or the error that ends it."""

    request_id: str
    chunk: TokenChunk | None = None
    error: OutriderError | None = None


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Attributes: `draft_k` is the most drafts a request gets in one window; 0 never speculates."""

    slots: int
    context: int
    draft_k: int
    page_size: int


class Engine:
    """A batch of requests on one network.

    Args:
        drafts: where guesses come from; swapped for others in proofs.
        clock: seconds, rising.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        programs: Programs,
        allocator: PageAllocator,
        drafts: DraftSource,
        vocabulary: int,
        metrics: Metrics,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        widest = programs.ladder.widest
        limits = Limits(slots=settings.slots, context=settings.context, rows=widest.rows, tiles=widest.tiles)
        self.scheduler = Scheduler(limits, allocator=allocator)
        self._settings = settings
        self._programs = programs
        self._drafts = drafts
        self._vocabulary = vocabulary
        self._metrics = metrics
        self._clock = clock

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, request: GenerateRequest, /) -> None:
        """Queues a request.

        Raises:
            InvalidRequest: it has no prompt, asks for nothing, or names a token that does not exist.
            ContextTooLong: it can never fit.
        """
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
        if request.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", "max_tokens")
        strange = [token for token in request.prompt_ids if not 0 <= token < self._vocabulary]
        if strange:
            raise InvalidRequest(
                f"token id {strange[0]} does not exist; ids run from 0 to {self._vocabulary - 1}", "prompt"
            )
        self.scheduler.submit(request)

    def cancel(self, request_id: str, /) -> None:
        """Forgets a request; its slot and pages are free at once."""
        if self.scheduler.cancel(request_id):
            self._drafts.close(request_id, reason="cancelled")
            self._metrics.add("requests_cancelled")
            # No window may follow to say so.
            self._set_gauges()

    def step(self) -> list[Delivery]:
        """Runs one window, if there is anything to run, and returns what it brought."""
        began = self._clock()
        for slot in self.scheduler.admit(now=began):
            self._metrics.add("prompt_tokens", amount=len(slot.request.prompt_ids))
            if self._settings.draft_k and slot.request.speculation.enabled:
                self._drafts.begin(slot.request)
        if not self.scheduler.active:
            return []
        drafts = self._collect_drafts()
        drafted = self._clock()
        plan = self.scheduler.plan(drafts.tokens)
        rung = self._programs.ladder.rung_for(rows=plan.rows, tiles=plan.tiles)
        window = pack(
            plan,
            rung=rung,
            emits=self._programs.ladder.emits_for(plan.emits) if plan.emits else 0,
            page_size=self._settings.page_size,
            slot_pages=self._programs.slot_pages,
        )
        packed = self._clock()
        result = self._programs.run(window)
        ran = self._clock()
        deliveries = self._apply(plan, result=result, drafts=drafts, now=ran)
        self._record(plan, rows=rung.rows, host=packed - drafted + self._clock() - ran, device=ran - packed)
        return deliveries

    def fail_all(self, error: OutriderError, /) -> list[Delivery]:
        """Ends every request with `error` and empties the cache; for a window that could not run."""
        ids = self.scheduler.drop_all()
        self._programs.clear_cache()
        for request_id in ids:
            self._drafts.close(request_id, reason="failed")
        self._set_gauges()
        return [Delivery(request_id=request_id, error=error) for request_id in ids]

    def _collect_drafts(self) -> Drafts:
        wanted: list[DraftWanted] = []
        for slot in self.scheduler.active:
            if not slot.is_decoding:
                continue
            reason = self._decline(slot)
            if reason is not None:
                self._count_decline(slot, reason=reason)
                continue
            wanted.append(
                DraftWanted(request=slot.request, sequence=slot.tokens, accepted=slot.accepted, k=self._wanted_k(slot))
            )
        return self._drafts.exchange(wanted) if wanted else Drafts()

    def _wanted_k(self, slot: Slot) -> int:
        limit = slot.request.speculation.max_draft
        most = self._settings.draft_k if limit is None else min(self._settings.draft_k, limit)
        return min(most, slot.remaining - 1)

    def _decline(self, slot: Slot) -> Decline | None:
        speculation = slot.request.speculation
        if self._settings.draft_k == 0:
            return Decline.DISABLED_BY_OPERATOR
        if not speculation.enabled or speculation.max_draft == 0:
            return Decline.DISABLED_BY_REQUEST
        if slot.remaining <= 1:
            return Decline.LAST_TOKEN
        return None if slot.backoff.may_guess else Decline.BACKING_OFF

    def _count_decline(self, slot: Slot, *, reason: Decline) -> None:
        slot.tally.declined[reason] += 1
        self._metrics.add("spec_decode_declined", labels=(reason.value,))

    def _apply(self, plan: StepPlan, *, result: WindowResult | None, drafts: Drafts, now: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        drawn = 0
        for span in plan.spans:
            span.slot.cached = span.start + len(span.tokens)
            if not span.emits or result is None:
                continue
            live = result.live[drawn : drawn + span.emits]
            kept = int(live.sum()) - 1
            draws = tuple(int(token) for token in result.tokens[drawn : drawn + kept + 1])
            drawn += span.emits
            deliveries.append(self._advance(span, draws=draws, kept=kept, plan=plan, drafts=drafts, now=now))
        return deliveries

    def _advance(
        self, span: Span, *, draws: tuple[int, ...], kept: int, plan: StepPlan, drafts: Drafts, now: float
    ) -> Delivery:
        slot = span.slot
        was_decoding = slot.is_decoding
        # Rows of refused drafts were written too; the next window overwrites them before anyone reads them.
        slot.cached -= span.drafts - kept
        slot.accepted = kept
        if slot.first_token_at is None:
            slot.first_token_at = now
        fresh, finish = slot.extend(draws)
        if was_decoding:
            self._tally(span, kept=kept, plan=plan, drafts=drafts)
        self._metrics.add("generation_tokens", amount=len(fresh))
        chunk = TokenChunk(token_ids=fresh, finish_reason=finish, statistics=slot.statistics(now=now))
        if finish is not None:
            self._finish(slot, reason=finish)
        return Delivery(request_id=slot.request.request_id, chunk=chunk)

    def _tally(self, span: Span, *, kept: int, plan: StepPlan, drafts: Drafts) -> None:
        slot = span.slot
        declined = drafts.declined.get(slot.request.request_id)
        if declined is not None:
            self._count_decline(slot, reason=declined)
        if span.drafts:
            slot.tally.rounds[(span.drafts, kept)] += 1
            slot.tally.draft_kind = drafts.kind
            self._metrics.add("spec_decode_num_drafts")
            self._metrics.add("spec_decode_num_draft_tokens", amount=span.drafts)
            self._metrics.add("spec_decode_num_accepted_tokens", amount=kept)
            for position in range(kept):
                self._metrics.add("spec_decode_num_accepted_tokens_per_pos", labels=(str(position),))
        if slot.request.speculation.enabled:
            slot.backoff = slot.backoff.after_window(speculated=plan.speculates, kept=kept)

    def _finish(self, slot: Slot, *, reason: FinishReason) -> None:
        self.scheduler.release(slot)
        self._drafts.close(slot.request.request_id, reason=reason.value)
        self._metrics.add("requests_finished", labels=(reason.value,))

    def _record(self, plan: StepPlan, *, rows: int, host: float, device: float) -> None:
        self._metrics.observe("window_seconds", value=device, labels=(str(rows),))
        self._metrics.observe("host_seconds", value=host)
        self._metrics.observe("window_occupancy", value=plan.rows / rows)
        self._set_gauges()

    def _set_gauges(self) -> None:
        self._metrics.set("active_slots", value=len(self.scheduler.active))
        self._metrics.set("waiting_requests", value=self.scheduler.waiting)
        self._metrics.set("pages_in_use", value=self.scheduler.pages_in_use)
