"""The engine over a network that can be computed by hand: any order of requests and cancels, and windows that fail."""

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deployments.messages.errors import ContextTooLong, InvalidRequest, Unavailable
from deployments.messages.generation import (
    Decline,
    FinishReason,
    GenerateRequest,
    SamplingSettings,
)
from deployments.verifier.drafts import Drafts, DraftWanted, NoDrafts
from tests.verifier.recalling import VOCABULARY, expected, next_token, recalling_engine
from tests.verifier.serving import Reply, Tallies, serve


class Guessing:
    """A source that knows the network: each guess is right with some probability. Notes what it is told."""

    def __init__(self, *, seed: int = 0, skill: float = 0.7) -> None:
        self._random = Random(seed)
        self._skill = skill
        self.begun: list[str] = []
        self.closed: dict[str, str] = {}
        self.kept: list[int] = []

    def begin(self, request: GenerateRequest, /) -> None:
        self.begun.append(request.request_id)

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        assert all(item.k >= 1 for item in wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        tokens: dict[str, tuple[int, ...]] = {}
        declined: dict[str, Decline] = {}
        for item in wanted:
            self.kept.append(item.accepted)
            assert item.k >= 1
            guess = self._guess(item, count=self._random.randint(0, item.k))
            if guess:
                tokens[item.request.request_id] = guess
            else:
                declined[item.request.request_id] = Decline.NO_GUESS
        return Drafts(tokens=tokens, declined=declined, kind="guessing")

    def close(self, request_id: str, /, *, reason: str) -> None:
        assert request_id not in self.closed
        self.closed[request_id] = reason

    def _guess(self, item: DraftWanted, *, count: int) -> tuple[int, ...]:
        text = list(item.sequence)
        for _ in range(count):
            right = next_token(text, seed=item.request.sampling.seed, choice=item.request.choice)
            text.append(right if self._random.random() < self._skill else self._random.randrange(VOCABULARY))
        return tuple(text[len(item.sequence) :])


def request(number: int, *, prompt: int = 5, tokens: int = 10, ends: tuple[int, ...] = ()) -> GenerateRequest:
    # Half of all prompts begin alike, as far as they go.
    random = Random(number if number % 2 else 0)
    text = tuple(random.randrange(VOCABULARY) for _ in range(prompt))
    return GenerateRequest(
        request_id=f"r{number}",
        prompt_ids=text,
        max_tokens=tokens,
        sampling=SamplingSettings(seed=number),
        choice=number % 2,
        end_ids=ends,
    )


def assert_whole(reply: Reply, *, of: GenerateRequest) -> None:
    wanted = expected(of)
    assert (reply.tokens, reply.finish, reply.error) == (wanted.tokens, wanted.finish, None)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40), st.integers(1, 24)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(
    moves=MOVES,
    skill=st.sampled_from([0.0, 0.6, 1.0]),
    pages=st.sampled_from([None, 17, 20]),
    reserve=st.sampled_from([1, 5, 256]),
    caches=st.booleans(),
    ends=st.booleans(),
    kept=st.sampled_from([None, 0, 1, 3]),
)
def test_any_order_of_requests_cancels_and_failures(
    moves: list[tuple[str, int, int]],
    skill: float,
    pages: int | None,
    reserve: int,
    caches: bool,
    ends: bool,
    kept: int | None,
) -> None:
    """After every step pages and states add up; what was not cancelled or hit by a failure has the right reply."""
    source, tallies = Guessing(skill=skill), Tallies()
    build = partial(recalling_engine, pages=pages, reserve=reserve, caches_prefixes=caches, kept_states=kept)
    engine, programs = build(source, metrics=tallies, prefill=8)
    requests: list[GenerateRequest] = []
    replies: dict[str, Reply] = {}
    gone: set[str] = set()

    def step() -> None:
        try:
            deliveries = engine.step()
        except RuntimeError:
            deliveries = engine.fail_all(Unavailable("a window failed"))
        for delivery in deliveries:
            assert delivery.request_id not in gone
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()

    for kind, first, second in moves:
        match kind:
            case "submit":
                requests.append(request(len(requests), prompt=first, tokens=second, ends=(0,) if ends else ()))
                replies[requests[-1].request_id] = Reply()
                engine.submit(requests[-1])
            case "cancel" if requests:
                name = requests[first % len(requests)].request_id
                engine.cancel(name)
                gone.add(name)
                engine.scheduler.check_integrity()
            case "step":
                for _ in range(first):
                    step()
            case "fail":
                programs.failures = [RuntimeError("lost the device")]
    while not engine.is_idle:
        step()

    for one in requests:
        reply = replies[one.request_id]
        if one.request_id not in gone and reply.error is None:
            assert_whole(reply, of=one)
        assert reply.tokens == expected(one).tokens[: len(reply.tokens)]
    assert engine.scheduler.pages_in_use == 0
    assert set(source.begun) == set(source.closed) & set(source.begun)
    assert all(tallies.gauges.get(name, 0) == 0 for name in ("active_slots", "waiting_requests", "pages_in_use"))


def test_more_requests_than_slots_are_all_served_in_turn() -> None:
    engine, _ = recalling_engine(Guessing())
    requests = [request(number, tokens=12) for number in range(11)]

    replies = serve(engine, requests)

    for one in requests:
        assert_whole(replies[one.request_id], of=one)


@pytest.mark.parametrize("steps", range(8))
def test_a_cancel_at_any_point_frees_slot_and_pages_at_once(steps: int) -> None:
    tallies = Tallies()
    engine, _ = recalling_engine(source := Guessing(), metrics=tallies, rows=(8,))
    engine.submit(request(0, prompt=20, tokens=20))
    for _ in range(steps):
        engine.step()

    engine.cancel("r0")

    assert engine.scheduler.is_idle
    assert engine.scheduler.pages_in_use == 0
    assert tallies.gauges["active_slots"] == tallies.gauges["pages_in_use"] == 0
    assert tallies.counters["requests_cancelled"] == 1
    assert source.closed == {"r0": "cancelled"}
    assert engine.step() == []
    assert engine.is_idle
    engine.cancel("r0")
    engine.cancel("never there")
    assert tallies.counters["requests_cancelled"] == 1


def test_what_can_never_be_served_is_refused_at_once() -> None:
    engine, _ = recalling_engine(NoDrafts())
    refused: dict[str, tuple[type[InvalidRequest], GenerateRequest]] = {
        "the prompt is empty": (InvalidRequest, replace(request(0), prompt_ids=())),
        "max_tokens must be at least 1": (InvalidRequest, replace(request(0), max_tokens=0)),
        "token id 5 does not exist; ids run from 0 to 4": (InvalidRequest, replace(request(0), prompt_ids=(1, 5))),
        "token id -1 does not exist": (InvalidRequest, replace(request(0), prompt_ids=(-1,))),
        "the prompt has 60 tokens and 5 more were asked for, together 65; the context holds 64": (
            ContextTooLong,
            request(0, prompt=60, tokens=5),
        ),
    }
    for text, (kind, one) in refused.items():
        with pytest.raises(kind, match=text):
            engine.submit(one)
    assert engine.is_idle
    assert_whole(serve(engine, [request(0, prompt=60, tokens=4)])["r0"], of=request(0, prompt=60, tokens=4))


def test_statistics_add_up() -> None:
    tallies = Tallies()
    engine, programs = recalling_engine(source := Guessing(), metrics=tallies)
    requests = [request(number, prompt=3 + number, tokens=9 + number) for number in range(5)]

    replies = serve(engine, requests)

    statistics = [reply.statistics for reply in replies.values()]
    assert [s.prompt_n + s.cache_n for s in statistics] == [3, 4, 5, 6, 7]
    assert [s.predicted_n for s in statistics] == [9, 10, 11, 12, 13]
    for one, reply in zip(statistics, replies.values(), strict=True):
        assert reply.chunks == 1 + (one.predicted_n - 1 - one.draft_n_accepted)
        assert one.draft_kind == "guessing"
        assert sum(one.declined.values()) + one.draft_rounds == reply.chunks - 1
        assert one.prompt_ms >= 0
        assert one.predicted_ms >= 0
    assert tallies.counters["spec_decode_num_draft_tokens"] == sum(s.draft_n for s in statistics)
    assert tallies.counters["spec_decode_num_accepted_tokens"] == sum(s.draft_n_accepted for s in statistics) > 0
    assert tallies.counters["spec_decode_num_drafts"] == sum(s.draft_rounds for s in statistics)
    assert sum(source.kept) <= sum(s.draft_n_accepted for s in statistics)
    assert tallies.counters["prompt_tokens"] == tallies.counters["prefix_cache_queries"] == 25
    assert tallies.counters["prefix_cache_hits"] == sum(s.cache_n for s in statistics)
    assert tallies.counters["generation_tokens"] == 55
    assert tallies.counters["requests_finished/length"] == 5
    # The first window follows no other.
    assert tallies.counters["host_seconds"] == programs.windows - 1
    assert source.begun == [one.request_id for one in requests]
    assert set(source.closed.values()) == {"length"}


def test_an_end_token_is_no_part_of_the_reply() -> None:
    engine, _ = recalling_engine(Guessing(skill=1.0))
    one = request(4, tokens=30, ends=(0, 1))
    reply = serve(engine, [one])["r4"]

    assert_whole(reply, of=one)
    assert reply.finish is FinishReason.STOP
    assert not {0, 1} & set(reply.tokens)
