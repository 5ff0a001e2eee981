"""Slots' pages: shared where prompts begin alike, grown while replies grow, refused where there are none."""

from deployments.verifier.scheduler import Scheduler
from tests.verifier.test_scheduler import PAGE, admitted, decoding, finish, request, scheduler, spans


def run(schedule: Scheduler, *, windows: int) -> None:
    """So many windows without drafts."""
    for _ in range(windows):
        schedule.prepare(now=0.0)
        finish(schedule.plan({}))
        for slot in schedule.active:
            schedule.settle(slot)
        schedule.check_integrity()


def test_pages_are_reserved_for_the_beginning_of_a_reply_and_grow_one_by_one() -> None:
    schedule = scheduler(reserve=4)
    schedule.submit(request("a", prompt=3, tokens=40))
    (slot,) = admitted(schedule, now=0.0)
    seen: list[tuple[int, int]] = []
    for _ in range(12):
        run(schedule, windows=1)
        seen.append((slot.cached, len(slot.pages)))

    assert seen[0] == (3, 1)
    assert all(pages == -(-cached // PAGE) for cached, pages in seen)


def test_drafts_take_free_pages_and_are_cut_where_there_are_none() -> None:
    schedule = scheduler(slots=2, pages=10, reserve=1)
    decoding(schedule, names="a", prompt=6, tokens=40)
    assert spans(schedule.plan({"a": (3, 3, 3, 3)})) == {"a": (5, 5)}
    schedule.submit(request("b", prompt=47, tokens=2))
    schedule.prepare(now=0.0)
    (slot, other) = schedule.active
    assert (len(slot.pages), len(other.pages)) == (2, 6)

    # Seven tokens and twenty drafts would take four pages; there is a third one, and no fourth.
    assert spans(schedule.plan({"a": (3,) * 20}))["a"] == (18, 18)
    assert len(slot.pages) == 3
    schedule.check_integrity()


def test_whoever_runs_finds_a_page_when_another_has_been_admitted() -> None:
    """Else the newcomer would be preempted for it in a moment."""
    schedule = scheduler(pages=5, reserve=1, context=32)
    decoding(schedule, names="a", prompt=8, tokens=20)
    schedule.submit(request("b", prompt=15, tokens=8))
    assert not admitted(schedule, now=0.0)
    schedule.cancel("b")
    schedule.submit(request("c", prompt=6, tokens=8))
    assert admitted(schedule, now=0.0)


def test_a_second_request_reads_what_the_first_has_completed() -> None:
    """While the first one still runs; it holds the same pages, and they outlive the first."""
    schedule = scheduler(shares=True, rungs=(16,), tiles=8)
    schedule.submit(request("a", prompt=40))
    run(schedule, windows=2)
    schedule.submit(request("b", prompt=40))
    (second,) = admitted(schedule, now=0.0)
    first = schedule.active[0]

    assert (second.reused, second.pages[:4]) == (32, first.pages[:4])
    schedule.cancel("a")
    schedule.check_integrity()
    run(schedule, windows=1)
    assert second.is_decoding
    schedule.cancel("b")
    assert (schedule.pages_in_use, schedule.pages_cached) == (0, 5)
    schedule.check_integrity()


def test_two_that_computed_the_same_page_keep_one_of_them() -> None:
    """Here replies: nobody waits for another's decoding."""
    schedule = scheduler(shares=True)
    decoding(schedule, names="ab", prompt=5)
    run(schedule, windows=10)
    first, second = schedule.active

    assert first.tokens == second.tokens
    assert first.pages[:1] == second.pages[:1]
    assert first.pages[1] != second.pages[1]
    run(schedule, windows=2)
    assert first.pages[:2] == second.pages[:2]


def test_of_prompts_that_begin_alike_one_computes_the_shared_page() -> None:
    schedule = scheduler(shares=True, rungs=(8,), tiles=8)
    for name in "abc":
        schedule.submit(request(name, prompt=20))
    rows: list[dict[str, int]] = []
    while not all(slot.is_decoding for slot in schedule.active) or not rows:
        schedule.prepare(now=0.0)
        plan = schedule.plan({})
        rows.append({name: count for name, (count, _) in spans(plan).items()})
        finish(plan)
        for slot in schedule.active:
            schedule.settle(slot)
        schedule.check_integrity()

    assert rows[:3] == [{"a": 8}, {"a": 8}, {"a": 4, "b": 4}]
    assert [slot.reused for slot in schedule.active] == [0, 16, 16]
    assert len({slot.pages[:2] for slot in schedule.active}) == 1


def test_a_long_prompt_leaves_streams_a_narrow_window() -> None:
    schedule = scheduler(rungs=(8, 16, 32), prompt_rows=12, context=128)
    decoding(schedule, names="a", tokens=100)
    schedule.submit(request("p", prompt=100))
    schedule.prepare(now=1.0)

    assert spans(schedule.plan({})) == {"a": (1, 1), "p": (7, 0)}
    schedule.cancel("a")
    assert spans(schedule.plan({})) == {"p": (32, 0)}
