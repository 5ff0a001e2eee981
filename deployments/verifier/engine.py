"""The loop that serves: admit, ask for drafts, run one window, hand out what it drew. One thread owns all of it.

Knows requests and windows; not Serve, not HTTP. `step` is one turn, for tests and for the thread alike.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.messages.errors import OutriderError
from deployments.messages.generation import GenerateRequest
from deployments.messages.metrics import Metrics
from deployments.verifier.asking import DraftRounds, Rules
from deployments.verifier.batch import Limits
from deployments.verifier.calling import Calls, CallUnderWay
from deployments.verifier.checking import check_request
from deployments.verifier.delivery import Advance, Delivery, Landed, UnderWay, refusal
from deployments.verifier.drafts import DraftSource
from deployments.verifier.gating import ungated
from deployments.verifier.pacing import together
from deployments.verifier.packing import pack
from deployments.verifier.paging import Paging
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Programs, WindowResult
from deployments.verifier.reporting import Drawn, drawn_for
from deployments.verifier.scheduler import Scheduler
from deployments.verifier.scheduler_gauges import SchedulerGauges
from deployments.verifier.states import States
from deployments.verifier.telling import Telling


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How requests are served.

    Attributes:
        draft_k: the most drafts a request gets in one window; 0 never speculates.
        draft_rows: the most drafts of all requests together; `None` sets no limit.
        rounds: the most windows of one device call that drafts for itself; 0 makes none. The source must draft alike.
        reserve_tokens, prefill_budget, priority_step_s: as in `batch.Limits`.
    """

    slots: int
    context: int
    draft_k: int
    page_size: int
    draft_rows: int | None = None
    rounds: int = 0
    reserve_tokens: int = 256
    prefill_budget: int = 32
    priority_step_s: float = 10.0


class Engine:
    """A batch of requests on one network.

    Args:
        prefix: finds pages by their content; `None` computes every prompt.
        states: of recurrent layers; `None` where there are none.
        drafts: where guesses come from; swapped for others in proofs.
        rules: what the gates allow, window by window; `None` allows all that the settings do.
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
        states: States | None = None,
        rules: Rules | None = None,
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
        self.scheduler = Scheduler(limits, paging=Paging(allocator, prefix=prefix, states=states))
        self._settings = settings
        self._programs = programs
        self._rounds = DraftRounds(
            drafts,
            draft_k=settings.draft_k,
            draft_rows=settings.draft_rows,
            metrics=metrics,
            rules=rules or ungated(slots=settings.slots, draft_k=settings.draft_k),
        )
        self._calls = Calls(
            programs=programs,
            scheduler=self.scheduler,
            rounds=self._rounds,
            most=settings.rounds,
            kind="ngram",
            shape=(settings.slots, settings.context),
        )
        self._telling = Telling(rounds=self._rounds, metrics=metrics, caches_prefixes=prefix is not None)
        self._under_way: UnderWay | CallUnderWay | None = None
        self._landed: list[Landed] = []
        self._outbox: list[Delivery] = []
        # Whose slots are free already and who has not been told of the end.
        self._ending: set[str] = set()
        self._vocabulary = vocabulary
        self._metrics = metrics
        self._clock = clock
        self._gauges = SchedulerGauges(self.scheduler, metrics=metrics)
        self._on_landed: Callable[[Landed], None] = lambda landed: None

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle and self._under_way is None

    def watch_windows(self, on_landed: Callable[[Landed], None], /) -> None:
        """Has `on_landed` told of each window that landed, in this thread, while the device works on the next one."""
        self._on_landed = on_landed

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
            self._rounds.close(request_id, reason="cancelled")
            self._metrics.add("requests_cancelled")
            # No window may follow to say so.
            self._gauges.refresh()

    def step(self) -> list[Delivery]:
        """Takes what the window under way brought, sends the next one off, and says what the first one brought.

        Only what the next window depends on is done between the two: the rest while the device works.
        """
        self._landed = self._land()
        if self._landed:
            self._rounds.ask(self.scheduler.active)
        self._prepare(now=self._clock())
        self._launch(landed_at=self._landed[-1].at if self._landed else None)
        self._tell()
        self._gauges.refresh()
        return self._take_outbox()

    def fail_all(self, error: OutriderError, /) -> list[Delivery]:
        """Ends every request with `error` and empties the cache; for a window that could not run."""
        self._under_way = None
        # The next window may have failed before this one was told of; or telling may have failed.
        with suppress(Exception):
            self._tell()
        ids = [*self.scheduler.drop_all(), *self._ending]
        self._ending.clear()
        self._programs.clear_cache()
        for request_id in ids:
            with suppress(Exception):
                self._rounds.close(request_id, reason="failed")
        self._gauges.refresh()
        return [*self._take_outbox(), *(Delivery(request_id=request_id, error=error) for request_id in ids)]

    def _tell(self) -> None:
        landed, self._landed = self._landed, []
        for window in landed:
            for step in window.steps:
                self._outbox.append(self._telling.delivery(step, drafts=window.flight.drafts, now=window.at))
                self._ending.discard(step.span.slot.request.request_id)
            self._on_landed(window)

    def _take_outbox(self) -> list[Delivery]:
        taken, self._outbox = self._outbox, []
        return together(taken)

    def _land(self) -> list[Landed]:
        under_way, self._under_way = self._under_way, None
        landed: list[Landed] = []
        for flight, result, at in () if under_way is None else under_way.windows(self._clock):
            self._metrics.observe("window_seconds", value=at - flight.launched_at, labels=(str(flight.rows),))
            self._metrics.observe("window_occupancy", value=flight.plan.rows / flight.rows)
            if flight.window is None:
                self._metrics.add("round_windows")
            landed.append(Landed(steps=self._apply(flight.plan, result=result, now=at), flight=flight, at=at))
        return landed

    def _launch(self, *, landed_at: float | None) -> None:
        """Sends off the next window, if there is anything to run."""
        if not self.scheduler.active:
            return
        call = self._calls.launch(follows=landed_at, clock=self._clock)
        if call is not None:
            self._metrics.add("round_calls")
        under_way = self._launch_window(follows=landed_at) if call is None else call
        self._under_way = under_way
        if landed_at is not None:
            self._metrics.observe("host_seconds", value=under_way.launched_at - under_way.waited - landed_at)

    def _launch_window(self, *, follows: float | None) -> UnderWay:
        asked = self._clock()
        drafts = self._rounds.collect(self.scheduler.active)
        drafted = self._clock()
        plan = self.scheduler.plan(drafts.tokens)
        rung = self._programs.ladder.rung_for(rows=plan.rows, tiles=plan.tiles)
        window = pack(
            plan,
            rung=rung,
            emits=self._programs.ladder.emits_for(plan.emits) if plan.emits else 0,
            page_size=self._settings.page_size,
            slot_pages=self._programs.slot_pages,
            room=self._programs.room,
        )
        # The device may begin before `launch` returns.
        launched = self._clock()
        return UnderWay(
            plan=plan,
            drafts=drafts,
            window=self._programs.launch(window),
            follows=follows,
            waited=drafted - asked,
            launched_at=launched,
            rows=rung.rows,
        )

    def _prepare(self, *, now: float) -> None:
        """Settles who is in the next window, and refuses those who waited too long."""
        changes = self.scheduler.prepare(now=now)
        self._outbox.extend(refusal(slot) for slot in changes.expired)
        for slot in changes.admitted:
            self._metrics.add("prompt_tokens", amount=len(slot.request.prompt_ids))
            self._rounds.begin(slot)
        if changes.preempted:
            # Their drafters keep what they know: a paused stream goes on where it was.
            self._metrics.add("num_preemptions", amount=len(changes.preempted))
        if changes.expired:
            self._metrics.add("requests_expired", amount=len(changes.expired))
            self._gauges.refresh()

    def _apply(self, plan: StepPlan, *, result: WindowResult | None, now: float) -> list[Advance]:
        """Everything the next window depends on, and nothing else: drafters wait for it."""
        steps: list[Advance] = []
        row = 0
        for span in plan.spans:
            rows = range(row, row + span.emits)
            row += span.emits
            if not self.scheduler.holds(span.slot):
                # Cancelled or preempted while its window ran; what came of it is drawn again if it is wanted.
                continue
            span.slot.cached = span.start + len(span.tokens)
            if not span.emits or result is None:
                self.scheduler.settle(span.slot)
                continue
            drawn = drawn_for(result, request=span.slot.request, rows=rows)
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
        self.scheduler.settle(slot, kept=kept)
        if not is_first and slot.request.speculation.enabled:
            slot.backoff = slot.backoff.after_window(speculated=speculates, kept=kept)
        if finish is not None:
            self.scheduler.release(slot)
            self._ending.add(slot.request.request_id)
        return Advance(span=span, drawn=drawn, fresh=fresh, finish=finish, is_first=is_first)
