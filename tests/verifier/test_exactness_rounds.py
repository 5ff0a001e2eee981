"""Exact with several windows in one device call (`placement: chip`): replies are the plain ones, token for token.

The reference is each request alone, without drafts, in windows of their own. Every test looks that calls were made.
`pytest -s` prints how many tokens were compared.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from deployments.messages.generation import FinishReason, GenerateRequest, SpeculationSettings
from deployments.verifier.loading import LoadedModel
from tests.verifier.comparing import alone, compared, requests_for, shaped_requests_for
from tests.verifier.serving import Reply, Tallies, serve

ROUNDS, TOKENS = 4, 160
# The greedy one whose drafts are often kept, and a sampled one.
KEPT, SAMPLED = 2, 3


@pytest.fixture(scope="module")
def model(golden_on_chip: LoadedModel) -> LoadedModel:
    return golden_on_chip


@pytest.fixture(scope="module")
def requests(golden_llama: Path) -> tuple[GenerateRequest, ...]:
    return tuple(replace(request, max_tokens=TOKENS) for request in requests_for(golden_llama))


@pytest.fixture(scope="module")
def plain(model: LoadedModel, requests: tuple[GenerateRequest, ...]) -> dict[str, Reply]:
    return alone(model, requests)


@dataclasses.dataclass(kw_only=True)
class Run:
    """Replies, and what was counted meanwhile."""

    replies: dict[str, Reply]
    tallies: Tallies

    @property
    def joined(self) -> int:
        return self.tallies.counters["round_windows"]

    @property
    def accepted(self) -> int:
        return sum(reply.statistics.draft_n_accepted for reply in self.replies.values())


def on_chip(model: LoadedModel, requests: Sequence[GenerateRequest]) -> Run:
    tallies = Tallies()
    engine = model.engine(drafts=model.chip_drafts(), metrics=tallies, on_chip=True)
    return Run(replies=serve(engine, requests), tallies=tallies)


def test_every_size_is_proved(model: LoadedModel) -> None:
    assert not model.report.refused_calls
    assert [size.rung.rows for size in model.programs.calls] == [8, 16, 32]


def test_replies_are_the_plain_ones(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    """All together, then each alone; and what is said of each adds up to its tokens."""
    batches = [requests, *([request] for request in requests)]
    for batch in batches:
        run = on_chip(model, batch)
        tokens = compared(plain, run.replies)
        print(f"{len(batch)} together: {tokens} tokens compared, {run.joined} windows joined, {run.accepted} accepted")
        assert tokens == TOKENS * len(batch)
        # All but the first ones, while prompts run or everybody backs off.
        assert run.joined > 40
        for reply in run.replies.values():
            said = reply.statistics
            drafted = sum(count * (kept + 1) for row in said.rounds for kept, count in enumerate(row))
            assert 1 + drafted + sum(said.declined.values()) == TOKENS
    assert on_chip(model, requests).accepted > 50


def test_a_chunk_brings_what_a_call_brought(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    request = requests[KEPT]
    run = on_chip(model, [request])
    reply, windows = run.replies[request.request_id], run.tallies.counters["window_occupancy"]

    assert run.joined / ROUNDS <= run.tallies.counters["round_calls"] < run.joined / 2
    assert reply.chunks < windows - run.joined + run.joined / 2
    assert reply.statistics.draft_kind == "ngram"
    assert reply.statistics.draft_n_accepted == run.tallies.counters["spec_decode_num_accepted_tokens"] > 20
    assert reply.tokens == plain[request.request_id].tokens


@pytest.mark.parametrize("number", [KEPT, SAMPLED])
def test_an_end_token_ends_the_reply_inside_a_call(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply], number: int
) -> None:
    request = requests[number]
    whole = plain[request.request_id].tokens
    ends = sorted({whole.index(token) for token in whole})
    others = tuple(token for token in range(512, 512 + 255))
    joined = 0
    for place in ends[:48]:
        one = replace(request, end_ids=(*others, whole[place]))
        run = on_chip(model, [one])
        assert run.replies[one.request_id].tokens == whole[:place]
        assert run.replies[one.request_id].finish is FinishReason.STOP
        joined += run.joined
    assert joined > 100
    ignoring = on_chip(model, [replace(request, end_ids=tuple(whole[:9]), ignore_eos=True)])
    assert ignoring.replies[request.request_id].tokens == whole


def test_max_tokens_end_the_reply_inside_a_call(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    """Each ends elsewhere, and the others go on in the same call."""
    for first in (1, 2, 9, 40):
        batch = [replace(request, max_tokens=first + 3 * place) for place, request in enumerate(requests)]
        run = on_chip(model, batch)
        for request in batch:
            reply = run.replies[request.request_id]
            assert (reply.tokens, reply.finish) == (
                plain[request.request_id].tokens[: request.max_tokens],
                FinishReason.LENGTH,
            )
        assert run.joined > 0


def test_a_reply_that_fills_the_context(model: LoadedModel, requests: tuple[GenerateRequest, ...]) -> None:
    """Up to the last position of the last page."""
    for left in (30, 31, 33):
        texts = [(requests[number].prompt_ids * 40)[: model.settings.context - left] for number in (KEPT, SAMPLED)]
        batch = [
            replace(requests[number], request_id=f"full{number}", prompt_ids=text, max_tokens=left)
            for number, text in zip((KEPT, SAMPLED), texts, strict=True)
        ]
        run = on_chip(model, batch)
        assert compared(alone(model, batch), run.replies) == 2 * left
        assert run.joined > 5


@pytest.mark.parametrize("pages", [36, 44, 60])
def test_preempted_requests_go_on(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply], pages: int
) -> None:
    small = dataclasses.replace(
        model, settings=dataclasses.replace(model.settings, cache_pages=pages, reserve_tokens=16)
    )
    run = on_chip(small, requests)

    assert compared(plain, run.replies) == TOKENS * len(requests)
    assert run.tallies.counters["num_preemptions"] > 0
    assert run.joined > 0


def test_prompts_found_in_the_cache(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    """The pages of whole conversations, which calls have written."""
    tallies = Tallies()
    engine = model.engine(drafts=model.chip_drafts(), metrics=tallies, on_chip=True)
    compared(plain, serve(engine, requests))
    longer = [
        replace(
            request,
            prompt_ids=(*request.prompt_ids, *plain[request.request_id].tokens[: TOKENS - 30]),
            max_tokens=30,
            request_id=f"again {request.request_id}",
        )
        for request in requests
        if request.sampling.is_greedy
    ]
    before = tallies.counters["prefix_cache_hits"]
    replies = serve(engine, longer)

    for request in longer:
        assert replies[request.request_id].tokens == plain[request.request_id.split()[1]].tokens[-30:]
    assert tallies.counters["prefix_cache_hits"] - before > 100 * len(longer)
    assert tallies.counters["round_windows"] > 0


def test_arrivals_wait_for_one_call_at_most(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    tallies = Tallies()
    engine = model.engine(drafts=model.chip_drafts(), metrics=tallies, on_chip=True)
    replies = {request.request_id: Reply() for request in requests}
    waiting = list(requests)
    engine.submit(waiting.pop(0))
    steps = 0
    while waiting or not engine.is_idle:
        steps += 1
        if waiting and steps % 9 == 0:
            calls, active = tallies.counters["round_calls"], len(engine.scheduler.active)
            engine.submit(waiting.pop(0))
            for delivery in engine.step():
                replies[delivery.request_id].take(delivery)
            # It has its slot, and its prompt is under way.
            assert len(engine.scheduler.active) >= active
            assert not engine.scheduler.waiting
            assert tallies.counters["round_calls"] == calls
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()

    assert compared(plain, replies) == TOKENS * len(requests)
    assert tallies.counters["round_windows"] > 100


def test_a_request_cancelled_while_a_call_runs(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    tallies = Tallies()
    engine = model.engine(drafts=model.chip_drafts(), metrics=tallies, on_chip=True)
    replies = {request.request_id: Reply() for request in requests}
    for request in requests:
        engine.submit(request)
    gone = requests[KEPT].request_id
    while not engine.is_idle:
        before = tallies.counters["round_calls"]
        told = engine.step()
        if gone in replies and tallies.counters["round_calls"] > before:
            # A call is under way.
            engine.cancel(gone)
            del replies[gone]
            told = [delivery for delivery in told if delivery.request_id != gone]
        for delivery in told:
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()

    assert gone not in replies
    assert compared(plain, replies) == TOKENS * (len(requests) - 1)
    assert engine.scheduler.pages_in_use == 0


def test_what_calls_do_not_carry_runs_in_windows_of_its_own(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply], golden_llama: Path
) -> None:
    shaped = shaped_requests_for(golden_llama)
    wanted = alone(model, shaped) | plain
    for request in shaped:
        run = on_chip(model, [request])
        compared(wanted, run.replies)
        assert run.joined == 0
    assert compared(wanted, on_chip(model, [*requests, *shaped]).replies) > TOKENS * len(requests)


def test_what_a_client_says_about_speculation_is_obeyed(
    model: LoadedModel, requests: tuple[GenerateRequest, ...], plain: dict[str, Reply]
) -> None:
    off = [replace(request, speculation=SpeculationSettings(enabled=False)) for request in requests]
    run = on_chip(model, off)
    compared(plain, run.replies)
    assert run.joined == 0

    short = replace(requests[KEPT], speculation=SpeculationSettings(max_draft=2))
    # One who does not speculate goes along.
    run = on_chip(model, [short, off[SAMPLED]])
    compared(plain, run.replies)
    assert run.joined > 0
    assert len(run.replies[short.request_id].statistics.rounds) == 3
    assert run.replies[off[SAMPLED].request_id].statistics.draft_n == 0
    assert run.replies[off[SAMPLED].request_id].statistics.declined["disabled_by_request"] > 0
