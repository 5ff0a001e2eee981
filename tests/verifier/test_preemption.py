"""Replies outgrow the cache: some pause, their tokens are computed again, and no reply changes or waits for ever."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deployments.messages.errors import DeadlinePassed
from deployments.messages.generation import FinishReason
from deployments.verifier.delivery import Delivery
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from tests.verifier.recalling import expected, recalling_engine
from tests.verifier.serving import Reply, Tallies, serve
from tests.verifier.test_engine import Guessing, assert_whole, request


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drain(engine: Engine, replies: dict[str, Reply]) -> list[list[str]]:
    """Runs to the end; who got tokens, window by window."""
    windows: list[list[str]] = []
    while not engine.is_idle:
        deliveries = engine.step()
        for delivery in deliveries:
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()
        windows.append([delivery.request_id for delivery in deliveries])
        assert len(windows) < 5000
    return windows


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("skill", [0.0, 0.7, 1.0])
def test_a_preempted_reply_is_the_same_and_only_pauses(skill: float, caches: bool) -> None:
    """Three replies of 40 tokens, and pages for little more than one."""
    tallies = Tallies()
    source = Guessing(skill=skill)
    engine, _ = recalling_engine(source, pages=17, reserve=4, metrics=tallies, caches_prefixes=caches)
    requests = [request(number, prompt=6, tokens=40) for number in (1, 3, 5)]

    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)
        assert replies[one.request_id].statistics.predicted_n == 40
    assert tallies.counters["num_preemptions"] > 0
    assert tallies.counters["prompt_tokens"] == 18
    assert tallies.counters["generation_tokens"] == 120
    assert source.begun == [one.request_id for one in requests]
    assert set(source.closed.values()) == {"length"}


def test_the_youngest_makes_room_and_the_oldest_never_pauses() -> None:
    engine, _ = recalling_engine(NoDrafts(), pages=17, reserve=1, prefill=8)
    requests = [request(number, prompt=4, tokens=40) for number in (1, 3, 5)]
    replies = {one.request_id: Reply() for one in requests}
    for one in requests:
        engine.submit(one)

    windows = drain(engine, replies)

    mine = [number for number, names in enumerate(windows) if "r1" in names]
    assert mine == list(range(mine[0], mine[0] + 40))
    last = [max(number for number, names in enumerate(windows) if name in names) for name in replies]
    assert last == sorted(last)


def test_a_higher_priority_keeps_its_pages() -> None:
    engine, _ = recalling_engine(NoDrafts(), pages=17, reserve=1)
    requests = [replace(request(number, prompt=4, tokens=40), priority=-number) for number in (1, 3, 5)]
    replies = {one.request_id: Reply() for one in requests}
    for one in requests:
        engine.submit(one)
    windows = drain(engine, replies)

    last = {name: max(number for number, names in enumerate(windows) if name in names) for name in replies}
    assert last["r5"] < last["r3"] < last["r1"]


def test_drafts_are_cut_before_anybody_is_preempted_for_them() -> None:
    """Three requests fill the cache to the last page but need none; only drafts would, and they are cut."""
    tallies = Tallies()
    engine, _ = recalling_engine(Guessing(skill=1.0), slots=2, pages=17, reserve=1, metrics=tallies)
    # Both end exactly where the pages do: 8 pages each.
    requests = [request(number, prompt=12, tokens=20) for number in (1, 3)]

    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)
    assert tallies.counters["num_preemptions"] == 0
    assert tallies.counters["spec_decode_num_draft_tokens"] > 0


def test_statistics_of_a_preempted_request_count_each_token_once() -> None:
    clock = Clock()
    engine, programs = recalling_engine(NoDrafts(), pages=17, reserve=1, clock=clock, caches_prefixes=False)
    launch = programs.launch

    def timed(window):  # type: ignore[no-untyped-def]  # as `Programs.launch`, a second long
        clock.now += 1.0
        return launch(window)

    programs.launch = timed  # type: ignore[method-assign]
    requests = [request(number, prompt=4, tokens=40) for number in (1, 3, 5)]
    replies = serve(engine, requests)

    for reply in replies.values():
        assert (reply.statistics.prompt_n, reply.statistics.cache_n, reply.statistics.predicted_n) == (4, 0, 40)
        assert reply.statistics.prompt_ms == 1000.0
    first, *others = (reply.statistics.predicted_ms for reply in replies.values())
    assert first == 39_000.0
    assert all(other > first for other in others)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    pages=st.sampled_from([17, 21, 40]),
    reserve=st.sampled_from([1, 3, 64]),
    caches=st.booleans(),
    skill=st.sampled_from([0.0, 0.8]),
)
def test_whatever_is_preempted_every_reply_is_whole(
    seed: int, pages: int, reserve: int, caches: bool, skill: float
) -> None:
    random = Random(seed)
    engine, _ = recalling_engine(
        Guessing(seed=seed, skill=skill), slots=5, pages=pages, reserve=reserve, caches_prefixes=caches, prefill=8
    )
    requests = [
        replace(
            request(number, prompt=random.randint(1, 30), tokens=random.randint(1, 34)),
            priority=random.randint(-2, 2),
            cache_prompt=random.random() < 0.8,
        )
        for number in range(8)
    ]
    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)


def test_who_waits_too_long_is_told_and_never_runs() -> None:
    clock, tallies = Clock(), Tallies()
    engine, _ = recalling_engine(NoDrafts(), slots=1, clock=clock, metrics=tallies)
    patient, hasty = request(0, tokens=20), replace(request(1), deadline_s=2.5)
    engine.submit(patient)
    engine.submit(hasty)
    replies = {"r0": Reply(), "r1": Reply()}
    for _ in range(4):
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        clock.now += 1.0

    error = replies["r1"].error
    assert isinstance(error, DeadlinePassed)
    assert str(error).startswith("no slot was free within the 2.5 s this request was willing to wait")
    assert replies["r1"].tokens == []
    assert (tallies.counters["requests_expired"], tallies.gauges["waiting_requests"]) == (1, 0)
    drain(engine, replies)
    assert_whole(replies["r0"], of=patient)


def test_a_deadline_does_not_end_what_has_begun() -> None:
    clock = Clock()
    engine, _ = recalling_engine(NoDrafts(), clock=clock)
    one = replace(request(0, tokens=6), deadline_s=1.0)
    engine.submit(one)
    replies = {"r0": Reply()}
    for delivery in engine.step():
        replies["r0"].take(delivery)
    clock.now += 100.0
    drain(engine, replies)

    assert_whole(replies["r0"], of=one)


@pytest.mark.parametrize("steps", [0, 3, 9, 15])
def test_a_preempted_request_can_be_cancelled(steps: int) -> None:
    engine, _ = recalling_engine(source := Guessing(), pages=17, reserve=1)
    requests = [request(number, prompt=4, tokens=40) for number in (1, 3, 5)]
    replies = {one.request_id: Reply() for one in requests}
    for one in requests:
        engine.submit(one)
    while not engine.scheduler.waiting and not engine.is_idle:
        take(engine.step(), replies)
    assert engine.scheduler.waiting
    for _ in range(steps):
        take(engine.step(), replies)
    engine.cancel("r5")
    drain(engine, replies)

    for one in requests[:2]:
        assert_whole(replies[one.request_id], of=one)
    assert replies["r5"].tokens == expected(requests[2]).tokens[: len(replies["r5"].tokens)]
    assert replies["r5"].finish in (None, FinishReason.LENGTH)
    assert set(source.closed) == set(replies)


def take(deliveries: Sequence[Delivery], replies: dict[str, Reply]) -> None:
    for delivery in deliveries:
        replies[delivery.request_id].take(delivery)
