"""Slots' recurrent states, by the engine over a network whose states are the tokens themselves: what is run once more,
what is left behind, who goes on from it, and that states add up."""

from random import Random

import pytest
from msgspec.structs import replace

from deployments.messages.generation import GenerateRequest
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from tests.verifier.recalling import VOCABULARY, RecallingPrograms, recalling_engine
from tests.verifier.serving import Reply, Tallies, serve
from tests.verifier.test_engine import Guessing, assert_whole, request
from tests.verifier.test_prefix_reuse import alike, turn


def text(length: int, *, seed: int) -> tuple[int, ...]:
    random = Random(seed)
    return tuple(random.randrange(VOCABULARY) for _ in range(length))


def asking(name: str, tokens: tuple[int, ...], *, more: int = 2) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_ids=tokens, max_tokens=more)


@pytest.mark.parametrize(("skill", "kept"), [(0.0, 0), (0.6, 4), (1.0, 4), (1.0, 0)])
def test_accepted_drafts_are_run_once_more_and_refused_ones_are_not(skill: float, kept: int) -> None:
    engine, programs = recalling_engine(Guessing(skill=skill), kept_states=kept, slots=4, rows=(8, 16, 32))
    requests = [request(number, prompt=3 + 4 * number, tokens=30) for number in range(8)]

    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)
    accepted = sum(reply.statistics.draft_n_accepted for reply in replies.values())
    # Those of a request's last window need not be.
    assert accepted - 3 * len(requests) <= programs.replayed <= accepted
    assert programs.replayed > 0


def test_a_slot_that_is_left_out_of_a_window_keeps_its_drafts_for_the_next() -> None:
    """Eight rows and nine streams: one of them waits in each window."""
    engine, programs = recalling_engine(Guessing(skill=1.0), kept_states=2, slots=8, rows=(8,), draft_k=3)
    requests = [request(number, prompt=2, tokens=20) for number in range(8)]

    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)
    assert programs.replayed > 0


def test_the_same_prompt_again_begins_at_its_last_page() -> None:
    engine, _ = recalling_engine(NoDrafts(), kept_states=3)
    for length, cached in ((8, 4), (9, 8), (12, 8), (13, 12), (42, 40)):
        one = asking(f"first {length}", text(length, seed=length))
        assert turn(engine, one).statistics.cache_n == 0
        again = turn(engine, replace(one, request_id="again"))
        assert again.statistics.cache_n == cached
        assert_whole(again, of=one)


def test_eight_of_one_prompt_compute_it_once() -> None:
    """The others wait for its state, not only for its first page."""
    engine, _ = recalling_engine(NoDrafts(), slots=8, rows=(8, 16, 32), kept_states=8)
    requests = alike(8, prompt=42, tokens=3)

    replies = serve(engine, requests)

    assert [reply.statistics.cache_n for reply in replies.values()] == [0] + [40] * 7
    for one in requests:
        assert_whole(replies[one.request_id], of=one)


def test_prompts_that_part_after_some_pages_share_those_from_the_third_on() -> None:
    """The second has to compute what it shares with the first, and leaves a state where they part."""
    engine, _ = recalling_engine(NoDrafts(), kept_states=8)
    shared = text(22, seed=1)
    cached = [
        turn(engine, asking(f"r{number}", (*shared, *text(15, seed=number + 2)))).statistics.cache_n
        for number in range(4)
    ]

    assert cached == [0, 0, 20, 20]


@pytest.mark.parametrize("skill", [None, 1.0, 0.5])
def test_a_second_turn_goes_on_from_the_reply(skill: float | None) -> None:
    """From the last page border that its state had come to: drafts accepted in the last window are not in it yet."""
    engine, _ = recalling_engine(NoDrafts() if skill is None else Guessing(skill=skill), kept_states=4)
    first = request(1, prompt=10, tokens=20)
    reply = turn(engine, first)
    second = replace(first, request_id="second", prompt_ids=(*first.prompt_ids, *reply.tokens, 1, 2, 3))

    again = turn(engine, second)

    assert again.statistics.cache_n in ((28,) if skill is None else (24, 28))
    assert_whole(again, of=second)


def test_without_kept_states_every_prompt_is_computed() -> None:
    engine, _ = recalling_engine(NoDrafts(), kept_states=0)
    for name in ("first", "again"):
        reply = turn(engine, asking(name, text(30, seed=1)))
        assert reply.statistics.cache_n == 0
        assert_whole(reply, of=asking(name, text(30, seed=1)))


def test_the_state_used_least_recently_goes_first() -> None:
    """Four states, of which whoever runs has one."""
    engine, _ = recalling_engine(NoDrafts(), kept_states=1, slots=3)
    prompts = [asking(f"r{number}", text(13, seed=number), more=1) for number in range(4)]
    for one in prompts[:3]:
        turn(engine, one)
    assert turn(engine, replace(prompts[0], request_id="again")).statistics.cache_n == 12
    turn(engine, prompts[3])

    cached = [turn(engine, replace(one, request_id="last")).statistics.cache_n for one in (prompts[0], prompts[1])]
    assert cached == [12, 0]


def test_a_state_goes_with_its_page() -> None:
    engine, _ = recalling_engine(NoDrafts(), kept_states=8, pages=17)
    asked = [asking(f"r{number}", text(28, seed=number), more=1) for number in range(3)]
    for one in asked:
        turn(engine, one)

    # Eight pages were needed and two were free: six of the first went, its last ones.
    assert turn(engine, replace(asked[0], request_id="again")).statistics.cache_n == 0


def test_a_request_may_keep_its_state_to_itself() -> None:
    engine, _ = recalling_engine(NoDrafts(), kept_states=4)
    one = replace(asking("private", text(20, seed=1), more=9), cache_prompt=False)
    for name in ("private", "again"):
        assert turn(engine, replace(one, request_id=name)).statistics.cache_n == 0
    assert turn(engine, replace(one, request_id="open", cache_prompt=True)).statistics.cache_n == 0
    assert turn(engine, replace(one, request_id="hit", cache_prompt=True)).statistics.cache_n == 16


@pytest.mark.parametrize("kept", [0, 1, 8])
def test_preempted_requests_begin_again_from_what_is_left(kept: int) -> None:
    tallies = Tallies()
    engine, _ = recalling_engine(
        Guessing(skill=0.8), slots=4, pages=20, reserve=1, metrics=tallies, kept_states=kept, rows=(8, 16, 32)
    )
    requests = [request(number, prompt=4 + number, tokens=40) for number in range(9)]
    replies = {one.request_id: Reply() for one in requests}
    random = Random(kept)
    for one in requests:
        engine.submit(one)
    while not engine.is_idle:
        if engine.scheduler.active and random.random() < 0.2:
            engine.scheduler.preempt(random.choice(engine.scheduler.active))
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()

    for one in requests:
        assert_whole(replies[one.request_id], of=one)
    assert tallies.counters["num_preemptions"] > 0


def broken(engine: Engine, programs: RecallingPrograms) -> None:
    """Every request, until something is wrong."""
    del programs
    requests = [request(number, prompt=9, tokens=30) for number in range(6)]
    replies = serve(engine, requests)
    for one in requests:
        assert_whole(replies[one.request_id], of=one)


@pytest.mark.parametrize("what", ["refused drafts too", "none", "from a state that another writes"])
def test_the_comparison_notices_a_wrong_state(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployments.verifier.states import States

    settle, leave_behind = States.settle, States._leave_behind

    def settling(self: States, slot, /, *, kept: int) -> None:  # type: ignore[no-untyped-def]
        settle(self, slot, kept=0 if what == "none" else min(kept + 1, 3, slot.cached))

    def leaving(self: States, own, *, pages: int) -> None:  # type: ignore[no-untyped-def]
        leave_behind(self, own, pages=pages)
        own.write = own.left[-1][1] if own.left else own.write

    if what == "from a state that another writes":
        monkeypatch.setattr(States, "_leave_behind", leaving)
    else:
        monkeypatch.setattr(States, "settle", settling)
    with pytest.raises(AssertionError):
        broken(*recalling_engine(Guessing(skill=0.7), kept_states=4))
