"""When windows are joined into calls, and what comes of it: over a network one can compute by hand."""

from random import Random

import pytest

from deployments.messages.gates import SpeculationRule
from deployments.messages.generation import GenerateRequest, SamplingSettings, SpeculationSettings
from tests.verifier.joining import joining_engine
from tests.verifier.recalling import VOCABULARY, expected
from tests.verifier.serving import Reply, Tallies, serve


def asked(
    name: str = "a", *, prompt: tuple[int, ...] = (1, 2, 3, 1, 2), most: int = 40, seed: int = 1
) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_ids=prompt, max_tokens=most, sampling=SamplingSettings(seed=seed))


def test_calls_begin_with_two_windows_and_double() -> None:
    engine, programs = joining_engine(rounds=8)
    reply = serve(engine, [asked()])["a"]

    assert reply.tokens == expected(asked()).tokens
    assert programs.asked[:3] == [2, 4, 8]


@pytest.mark.parametrize("rounds", [1, 3])
def test_no_call_has_more_windows_than_are_allowed(rounds: int) -> None:
    engine, programs = joining_engine(rounds=rounds)
    serve(engine, [asked()])

    assert set(programs.asked) == {min(rounds, 2), rounds}


def test_none_is_made_where_none_is_allowed() -> None:
    engine, programs = joining_engine(rounds=0)
    assert serve(engine, [asked()])["a"].tokens == expected(asked()).tokens
    assert not programs.asked


def test_an_arrival_ends_the_calls_until_it_decodes() -> None:
    tallies = Tallies()
    engine, programs = joining_engine(rounds=8, metrics=tallies)
    replies = {"a": Reply(), "b": Reply()}
    engine.submit(asked(most=50))
    while len(programs.asked) < 3:
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
    engine.submit(asked("b", prompt=(4, 4, 0, 1), seed=2))
    # The call under way is taken, and the prompt goes into the window after it.
    for delivery in engine.step():
        replies[delivery.request_id].take(delivery)
    assert len(engine.scheduler.active) == 2
    assert len(programs.asked) == 3
    while not engine.is_idle:
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)

    assert programs.asked[3] == 2
    assert replies["a"].tokens == expected(asked(most=50)).tokens
    assert replies["b"].tokens == expected(asked("b", prompt=(4, 4, 0, 1), seed=2)).tokens
    assert tallies.counters["round_calls"] == len(programs.asked)


@pytest.mark.parametrize("speculation", [SpeculationSettings(enabled=False), SpeculationSettings(max_draft=0), None])
def test_nobody_who_may_guess_no_call(speculation: SpeculationSettings | None) -> None:
    """By the requests, or by the rule."""
    closed = SpeculationRule(
        kind=None, state="declined", gated=True, reason="not_faster", sentence="", k_by_active_slots=()
    )
    engine, programs = joining_engine(rules=None if speculation else lambda: closed)
    request = asked()
    if speculation is not None:
        request = GenerateRequest(
            request_id="a",
            prompt_ids=request.prompt_ids,
            max_tokens=40,
            sampling=request.sampling,
            speculation=speculation,
        )
    assert serve(engine, [request])["a"].tokens == expected(request).tokens
    assert not programs.asked


def test_a_window_too_narrow_for_all_drafts_is_not_joined() -> None:
    """Three chains of four do not fit 8 rows; two do, and one."""
    engine, programs = joining_engine(rows=(8,))
    requests = [asked(f"{number}", seed=number, most=20 + 10 * number) for number in range(3)]
    replies = serve(engine, requests)

    assert all(replies[request.request_id].tokens == expected(request).tokens for request in requests)
    assert programs.asked


@pytest.mark.parametrize("seed", range(12))
def test_arrivals_cancellations_and_few_pages(seed: int) -> None:
    """Random company: every reply is the one from the definition, and the scheduler is whole after every step."""
    random = Random(seed)
    tallies = Tallies()
    pages = random.choice([18, 24, 49])
    engine, _ = joining_engine(rounds=random.choice([2, 4, 8]), pages=pages, reserve=4, metrics=tallies)
    shared = tuple(random.randrange(VOCABULARY) for _ in range(9))
    open_requests: dict[str, tuple[GenerateRequest, Reply]] = {}
    told = 0
    for step in range(400):
        if random.random() < 0.06 and step < 300:
            tail = tuple(random.randrange(VOCABULARY) for _ in range(random.randint(1, 9)))
            request = GenerateRequest(
                request_id=f"{step}",
                prompt_ids=random.choice([(), shared]) + tail,
                max_tokens=random.randint(1, 45),
                end_ids=random.choice([(), (), (4,)]),
                sampling=SamplingSettings(seed=random.randrange(2**32)),
                choice=random.randrange(3),
                priority=random.choice([0, 0, 1, -1]),
            )
            open_requests[request.request_id] = (request, Reply())
            engine.submit(request)
        if open_requests and random.random() < 0.01:
            gone = random.choice(list(open_requests))
            engine.cancel(gone)
            del open_requests[gone]
        for delivery in engine.step():
            request, reply = open_requests[delivery.request_id]
            reply.take(delivery)
            if reply.finish is not None:
                wanted = expected(request)
                assert (reply.tokens, reply.finish) == (wanted.tokens, wanted.finish)
                del open_requests[delivery.request_id]
                told += 1
        engine.scheduler.check_integrity()

    assert engine.is_idle
    assert told > 5
    assert tallies.counters["round_windows"] > 50
