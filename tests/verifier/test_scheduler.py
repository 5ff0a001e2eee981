"""Who is admitted, and which rows a window gets: in order, within its limits, and nobody waits for ever."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.messages.errors import ContextTooLong
from deployments.messages.generation import GenerateRequest
from deployments.verifier.batch import Limits
from deployments.verifier.paging import Paging
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.scheduler import Scheduler
from deployments.verifier.slots import Slot

PAGE = 8


def request(name: str, *, prompt: int = 5, tokens: int = 10) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_ids=tuple(range(prompt)), max_tokens=tokens)


def scheduler(
    *,
    slots: int = 4,
    context: int = 64,
    rungs: tuple[int, ...] = (32,),
    tiles: int = 12,
    pages: int | None = None,
    reserve: int = 256,
    prompt_rows: int = 32,
    shares: bool = False,
) -> Scheduler:
    pool = pages or slots * context // PAGE + 1
    limits = Limits(slots=slots, context=context, rungs=rungs, tiles=tiles, reserve=reserve, prompt_rows=prompt_rows)
    allocator = PageAllocator(pool, page_size=PAGE)
    prefix = PrefixCache(allocator, root=b"test") if shares else None
    return Scheduler(limits, paging=Paging(allocator, prefix=prefix))


def admitted(schedule: Scheduler, *, now: float) -> tuple[Slot, ...]:
    return schedule.prepare(now=now).admitted


def finish(plan: StepPlan, *, kept: int = 0) -> None:
    """What the engine does after a window, with `kept` drafts of each request accepted."""
    for span in plan.spans:
        span.slot.cached = span.start + len(span.tokens)
        if span.emits:
            accepted = min(kept, span.drafts)
            span.slot.cached -= span.drafts - accepted
            span.slot.tokens += [*span.tokens[len(span.tokens) - span.drafts :][:accepted], 9]


def decoding(schedule: Scheduler, *, names: str, prompt: int = 1, tokens: int = 40) -> None:
    """Admits a request per letter and brings it past its prompt."""
    for name in names:
        schedule.submit(request(name, prompt=prompt, tokens=tokens))
    schedule.prepare(now=0.0)
    while any(not slot.is_decoding for slot in schedule.active):
        finish(schedule.plan({}))


def spans(plan: StepPlan) -> dict[str, tuple[int, int]]:
    """Rows and draws by request."""
    return {span.slot.request.request_id: (len(span.tokens), span.emits) for span in plan.spans}


def test_first_come_first_served() -> None:
    schedule = scheduler(slots=2)
    for name in "abc":
        schedule.submit(request(name))

    assert [slot.request.request_id for slot in admitted(schedule, now=1.0)] == ["a", "b"]
    assert (schedule.waiting, admitted(schedule, now=2.0)) == (1, ())
    schedule.cancel("a")
    (slot,) = admitted(schedule, now=3.0)
    assert (slot.request.request_id, slot.index, slot.admitted_at) == ("c", 0, 3.0)
    schedule.check_integrity()


def test_a_request_that_lacks_pages_is_not_overtaken() -> None:
    """Else a long one would wait for as long as short ones come."""
    schedule = scheduler(pages=8 + 1)
    schedule.submit(request("a", prompt=30, tokens=10))
    schedule.submit(request("long", prompt=30, tokens=10))
    schedule.submit(request("short", prompt=1, tokens=1))

    assert len(admitted(schedule, now=0.0)) == 1
    schedule.cancel("a")
    assert [slot.request.request_id for slot in admitted(schedule, now=0.0)] == ["long", "short"]


def test_pages_are_reserved_for_the_whole_reply() -> None:
    schedule = scheduler()
    schedule.submit(request("a", prompt=7, tokens=1))
    schedule.submit(request("b", prompt=7, tokens=2))

    assert [len(slot.pages) for slot in admitted(schedule, now=0.0)] == [1, 2]
    assert schedule.pages_in_use == 3


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        ContextTooLong, match="has 60 tokens and 5 more were asked for, together 65; the context holds 64"
    ):
        scheduler().submit(request("a", prompt=60, tokens=5))
    scheduler().submit(request("a", prompt=60, tokens=4))


def test_a_prompt_goes_in_chunks_and_draws_at_its_end_alone() -> None:
    schedule = scheduler(rungs=(16,), tiles=8)
    schedule.submit(request("a", prompt=37))
    (slot,) = admitted(schedule, now=0.0)
    seen: list[tuple[int, int, int]] = []
    while not slot.is_decoding:
        (span,) = schedule.plan({"a": (1, 2)}).spans
        assert span.tokens == slot.request.prompt_ids[span.start : span.start + len(span.tokens)]
        seen.append((span.start, len(span.tokens), span.emits))
        finish(StepPlan(spans=(span,)))

    assert seen == [(0, 16, 0), (16, 16, 0), (32, 5, 1)]


def test_decoding_rows_come_before_prompts() -> None:
    schedule = scheduler(rungs=(8,), tiles=8)
    decoding(schedule, names="ab")
    schedule.submit(request("p", prompt=20))
    schedule.prepare(now=1.0)
    plan = schedule.plan({"a": (7, 7)})

    assert spans(plan) == {"a": (3, 3), "b": (1, 1), "p": (4, 0)}
    assert plan.speculates
    assert (plan.rows, plan.tiles, plan.emits) == (8, 3, 4)


def test_drafts_never_take_the_row_of_another_request() -> None:
    """With more drafts than rows: everybody decodes, and the oldest prompt goes on, before anybody's drafts."""
    schedule = scheduler(rungs=(8,), tiles=8)
    decoding(schedule, names="abc")
    schedule.submit(request("p", prompt=20))
    schedule.prepare(now=1.0)
    drafts = dict.fromkeys("abc", (1,) * 7)

    assert spans(schedule.plan(drafts)) == {"a": (5, 5), "b": (1, 1), "c": (1, 1), "p": (1, 0)}
    few_tiles = scheduler(rungs=(32,), tiles=4)
    decoding(few_tiles, names="abcd")
    assert spans(few_tiles.plan(dict.fromkeys("abcd", (1,) * 7))) == dict.fromkeys("abcd", (4, 4))


def test_who_is_left_out_comes_first_next_time() -> None:
    """A window with fewer tiles than slots, as when a probe refused the wider ones."""
    schedule = scheduler(rungs=(8,), tiles=2)
    decoding(schedule, names="abcd", tokens=60)
    counts = dict.fromkeys("abcd", 0)
    for _ in range(10):
        plan = schedule.plan({})
        assert len(plan.spans) == 2
        for name in spans(plan):
            counts[name] += 1
        finish(plan)

    assert set(counts.values()) == {5}


def test_a_prompt_goes_on_however_many_decode() -> None:
    schedule = scheduler(rungs=(8,), tiles=2)
    decoding(schedule, names="abc")
    schedule.submit(request("p", prompt=20))
    schedule.prepare(now=1.0)
    windows = 0
    while not schedule.active[-1].is_decoding:
        plan = schedule.plan(dict.fromkeys("abc", (1, 2, 3)))
        assert len(plan.spans) == 2
        finish(plan)
        windows += 1

    assert windows == 5


def test_refused_drafts_are_written_again() -> None:
    schedule = scheduler()
    decoding(schedule, names="a")
    (slot,) = schedule.active
    start = slot.cached
    plan = schedule.plan({"a": (3, 3, 3)})
    assert plan.spans[0].start == start
    finish(plan, kept=1)

    (span,) = schedule.plan({}).spans
    assert (span.start, span.tokens) == (start + 2, (9,))


def test_a_cancel_finds_a_request_wherever_it_is() -> None:
    schedule = scheduler(slots=1)
    schedule.submit(request("a"))
    schedule.submit(request("b"))
    schedule.prepare(now=0.0)

    assert schedule.cancel("b")
    assert schedule.cancel("a")
    assert not schedule.cancel("a")
    assert schedule.is_idle
    assert schedule.pages_in_use == 0


def test_integrity_notices_a_slot_that_lies() -> None:
    schedule = scheduler()
    decoding(schedule, names="a")
    (slot,) = schedule.active
    schedule.check_integrity()
    cached, slot.cached = slot.cached, len(slot.tokens)
    with pytest.raises(AssertionError, match="cached"):
        schedule.check_integrity()
    slot.cached, slot.tokens = 100, slot.tokens + [0] * 100
    with pytest.raises(AssertionError, match="more cached positions than its pages"):
        schedule.check_integrity()
    slot.cached, slot.tokens, slot.pages = cached, slot.tokens[:2], slot.pages[1:]
    with pytest.raises(AssertionError, match="lost or doubled"):
        schedule.check_integrity()


def covered(plan: StepPlan) -> Iterator[tuple[Slot, int]]:
    return ((span.slot, span.start + place) for span in plan.spans for place in range(len(span.tokens)))


def assert_sound(plan: StepPlan, *, limits: tuple[int, int]) -> None:
    rows, tiles = limits
    assert 0 < plan.rows <= rows
    assert plan.tiles <= tiles
    assert plan.tiles == sum(-(-len(span.tokens) // TILE_ROWS) for span in plan.spans)
    places = [(slot.index, position) for slot, position in covered(plan)]
    assert len(set(places)) == len(places)
    for slot, position in covered(plan):
        assert position < len(slot.pages) * PAGE
    for span in plan.spans:
        assert_span(span)


def assert_span(span: Span) -> None:
    assert span.start == span.slot.cached
    known = span.slot.tokens[span.start : span.start + len(span.tokens) - span.drafts]
    assert list(span.tokens[: len(known)]) == known
    assert (span.emits > 0) == (span.start + len(span.tokens) - span.drafts == len(span.slot.tokens))


def senior(schedule: Scheduler) -> Slot | None:
    return min(schedule.active, key=lambda slot: slot.seniority, default=None)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([8, 16, 32]),
    tiles=st.sampled_from([2, 4, 12]),
    pages=st.sampled_from([9, 12, 20]),
    reserve=st.sampled_from([1, 4, 256]),
    shares=st.booleans(),
)
def test_every_plan_is_sound_and_every_request_ends(
    seed: int, rows: int, tiles: int, pages: int, reserve: int, shares: bool
) -> None:
    """However few pages there are: the most senior request never makes room, so it ends, and then the next one is."""
    random = Random(seed)
    schedule = scheduler(
        rungs=(rows,), tiles=tiles, pages=pages, reserve=reserve, shares=shares, prompt_rows=random.choice([1, 8, 32])
    )
    for number in range(random.randrange(1, 9)):
        one = request(str(number), prompt=random.randint(1, 40), tokens=random.randint(1, 24))
        schedule.submit(replace(one, priority=random.randint(-1, 1)), now=float(random.randrange(30)))
    windows = 0
    while not schedule.is_idle:
        first = senior(schedule)
        changes = schedule.prepare(now=100.0 + windows)
        assert first not in changes.preempted
        drafts = {
            slot.request.request_id: (1,) * random.randint(1, slot.remaining - 1)
            for slot in schedule.active
            if slot.is_decoding and slot.remaining > 1 and random.random() < 0.7
        }
        plan = schedule.plan(drafts)
        assert_sound(plan, limits=(rows, tiles))
        finish(plan, kept=random.randrange(4))
        for slot in schedule.active:
            schedule.settle(slot)
            if slot.generated > 0 and slot.remaining == 0:
                schedule.release(slot)
        schedule.check_integrity()
        windows += 1
        assert windows < 9 * 120
