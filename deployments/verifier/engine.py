"""The loop that serves: admit, ask for drafts, run one window, hand out what it drew. One thread owns all of it.

Knows requests and windows; not Serve, not HTTP. `step` is one turn, for tests and for the thread alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.messages.errors import OutriderError
from deployments.messages.generation import Decline, GenerateRequest, TokenChunk
from deployments.messages.metrics import Metrics
from deployments.verifier.batch import Limits
from deployments.verifier.checking import check_request
from deployments.verifier.delivery import Advance, Delivery, refusal
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted
from deployments.verifier.packing import pack
from deployments.verifier.paging import Paging
from deployments.verifier.programs import Programs, WindowResult
from deployments.verifier.reporting import Drawn, drawn_for
from deployments.verifier.scheduler import Scheduler, Span, StepPlan
from deployments.verifier.slots import Slot


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How requests are served.

    Attributes:
        draft_k: the most drafts a request gets in one window; 0 never speculates.
        draft_rows: the most drafts of all requests together; `None` sets no limit.
        reserve_tokens, prefill_budget, priority_step_s: as in `batch.Limits`.
    """

    slots: int
    context: int
    draft_k: int
    page_size: int
    draft_rows: int | None = None
    reserve_tokens: int = 256
    prefill_budget: int = 32
    priority_step_s: float = 10.0


class Engine:
    """A batch of requests on one network.

    Args:
        prefix: finds pages by their content; `None` computes every prompt.
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
        prefix: PrefixCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        limits = Limits(
            slots=settings.slots,
            context=settings.context,
            rungs=tuple(rung.rows for rung in programs.ladder.rungs),
            tiles=programs.ladder.widest.tiles,
            reserve=settings.reserve_tokens,
            prompt_rows=settings.prefill_budget,
            priority_step=settings.priority_step_s,
        )
        self.scheduler = Scheduler(limits, paging=Paging(allocator, prefix=prefix))
        self._settings = settings
        self._programs = programs
        self._drafts = drafts
        self._vocabulary = vocabulary
        self._metrics = metrics
        self._clock = clock
        self._caches_prefixes = prefix is not None
        self._evicted = 0

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, request: GenerateRequest, /) -> None:
        """Queues a request.

        Raises:
            InvalidRequest: it asks for nothing, or for what no window can do.
            ContextTooLong: it can never fit.
        """
        check_request(request, vocabulary=self._vocabulary)
        self.scheduler.submit(request, now=self._clock())

    def cancel(self, request_id: str, /) -> None:
        """Forgets a request; its slot and pages are free at once."""
        if self.scheduler.cancel(request_id):
            self._drafts.close(request_id, reason="cancelled")
            self._metrics.add("requests_cancelled")
            # No window may follow to say so.
            self._set_gauges()

    def step(self) -> list[Delivery]:
        """Runs one window, if there is anything to run, and returns what it brought."""
        refused = self._prepare(now=self._clock())
        if not self.scheduler.active:
            return refused
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
        steps = self._apply(plan, result=result, now=ran)
        applied = self._clock()
        self._ask_ahead()
        asked = self._clock()
        deliveries = [self._deliver(step, drafts=drafts, now=ran) for step in steps]
        host = packed - drafted + applied - ran + self._clock() - asked
        self._record(plan, rows=rung.rows, host=host, device=ran - packed)
        return [*refused, *deliveries]

    def fail_all(self, error: OutriderError, /) -> list[Delivery]:
        """Ends every request with `error` and empties the cache; for a window that could not run."""
        ids = self.scheduler.drop_all()
        self._programs.clear_cache()
        for request_id in ids:
            self._drafts.close(request_id, reason="failed")
        self._set_gauges()
        return [Delivery(request_id=request_id, error=error) for request_id in ids]

    def _prepare(self, *, now: float) -> list[Delivery]:
        """Settles who is in the next window; returns the refusals of those who waited too long."""
        changes = self.scheduler.prepare(now=now)
        for slot in changes.admitted:
            self._metrics.add("prompt_tokens", amount=len(slot.request.prompt_ids))
            if self._settings.draft_k and slot.request.speculation.enabled:
                self._drafts.begin(slot.request)
        if changes.preempted:
            # Their drafters keep what they know: a paused stream goes on where it was.
            self._metrics.add("num_preemptions", amount=len(changes.preempted))
        if changes.expired:
            self._metrics.add("requests_expired", amount=len(changes.expired))
            self._set_gauges()
        return [refusal(slot) for slot in changes.expired]

    def _collect_drafts(self) -> Drafts:
        wanted: list[DraftWanted] = []
        for slot in self.scheduler.active:
            if not slot.is_decoding:
                continue
            reason = self._decline(slot)
            if reason is not None:
                self._count_decline(slot, reason=reason)
                continue
            wanted.append(self._wanted(slot))
        return self._drafts.exchange(wanted).cut(wanted) if wanted else Drafts()

    def _ask_ahead(self) -> None:
        """Drafters draft for the next window while this one is handed out."""
        slots = (slot for slot in self.scheduler.active if slot.is_decoding and self._decline(slot) is None)
        wanted = [self._wanted(slot) for slot in slots]
        if wanted:
            self._drafts.ask(wanted)

    def _wanted(self, slot: Slot) -> DraftWanted:
        limit = slot.request.speculation.max_draft
        most = self._settings.draft_k if limit is None else min(self._settings.draft_k, limit)
        k = min(most, self._draft_share, slot.remaining - 1)
        return DraftWanted(request=slot.request, sequence=slot.tokens, accepted=slot.accepted, k=k)

    @property
    def _draft_share(self) -> int:
        """The drafts one request may have beside as many others as are decoding: rows cost most when there are many."""
        if self._settings.draft_rows is None:
            return self._settings.draft_k
        decoding = sum(slot.is_decoding for slot in self.scheduler.active)
        return self._settings.draft_rows // max(decoding, 1)

    def _decline(self, slot: Slot) -> Decline | None:
        speculation = slot.request.speculation
        if self._settings.draft_k == 0:
            return Decline.DISABLED_BY_OPERATOR
        if not speculation.enabled or speculation.max_draft == 0:
            return Decline.DISABLED_BY_REQUEST
        if slot.remaining <= 1:
            return Decline.LAST_TOKEN
        if not self._draft_share:
            return Decline.LOAD
        return None if slot.backoff.may_guess else Decline.BACKING_OFF

    def _count_decline(self, slot: Slot, *, reason: Decline) -> None:
        slot.tally.declined[reason] += 1
        self._metrics.add("spec_decode_declined", labels=(reason.value,))

    def _apply(self, plan: StepPlan, *, result: WindowResult | None, now: float) -> list[Advance]:
        """Everything the next window depends on, and nothing else: drafters wait for it."""
        steps: list[Advance] = []
        row = 0
        for span in plan.spans:
            span.slot.cached = span.start + len(span.tokens)
            if not span.emits or result is None:
                self.scheduler.settle(span.slot)
                continue
            drawn = drawn_for(result, request=span.slot.request, rows=range(row, row + span.emits))
            row += span.emits
            steps.append(self._advance(span, drawn=drawn, speculates=plan.speculates, now=now))
        return steps

    def _advance(self, span: Span, *, drawn: Drawn, speculates: bool, now: float) -> Advance:
        slot, kept, is_first = span.slot, drawn.kept, span.slot.generated == 0
        # Rows of refused drafts were written too; the next window overwrites them before anyone reads them.
        slot.cached -= span.drafts - kept
        slot.accepted = kept
        if slot.first_token_at is None:
            slot.first_token_at = now
        fresh, finish = slot.extend(drawn.tokens)
        self.scheduler.settle(slot)
        if not is_first and slot.request.speculation.enabled:
            slot.backoff = slot.backoff.after_window(speculated=speculates, kept=kept)
        if finish is not None:
            self.scheduler.release(slot)
        return Advance(span=span, drawn=drawn, fresh=fresh, finish=finish, is_first=is_first)

    def _deliver(self, step: Advance, *, drafts: Drafts, now: float) -> Delivery:
        slot, drawn, fresh, finish = step.span.slot, step.drawn, step.fresh, step.finish
        if step.is_first:
            self._count_prompt(slot)
        else:
            self._tally(step.span, kept=drawn.kept, drafts=drafts)
        self._metrics.add("generation_tokens", amount=len(fresh))
        chunk = TokenChunk(
            token_ids=fresh,
            finish_reason=finish,
            statistics=slot.statistics(now=now),
            logprobs=None if drawn.logprobs is None else drawn.logprobs[: len(fresh)],
        )
        if finish is not None:
            self._drafts.close(slot.request.request_id, reason=finish.value)
            self._metrics.add("requests_finished", labels=(finish.value,))
        return Delivery(request_id=slot.request.request_id, chunk=chunk)

    def _tally(self, span: Span, *, kept: int, drafts: Drafts) -> None:
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

    def _count_prompt(self, slot: Slot) -> None:
        if slot.request.cache_prompt and self._caches_prefixes:
            self._metrics.add("prefix_cache_queries", amount=len(slot.request.prompt_ids))
            self._metrics.add("prefix_cache_hits", amount=slot.reused)

    def _record(self, plan: StepPlan, *, rows: int, host: float, device: float) -> None:
        self._metrics.observe("window_seconds", value=device, labels=(str(rows),))
        self._metrics.observe("host_seconds", value=host)
        self._metrics.observe("window_occupancy", value=plan.rows / rows)
        self._set_gauges()

    def _set_gauges(self) -> None:
        self._metrics.set("active_slots", value=len(self.scheduler.active))
        self._metrics.set("waiting_requests", value=self.scheduler.waiting)
        self._metrics.set("pages_in_use", value=self.scheduler.pages_in_use)
        self._metrics.set("pages_cached", value=self.scheduler.pages_cached)
        evicted = self.scheduler.pages_evicted
        if evicted > self._evicted:
            self._metrics.add("pages_evicted", amount=evicted - self._evicted)
            self._evicted = evicted
