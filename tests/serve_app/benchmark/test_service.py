"""Measurements over HTTP, against a real ingress whose verifier replies by script."""

from typing import Any

import pytest

from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest
from serve_app.benchmark.service import (
    Workload,
    await_drafter,
    measure_first_token,
    measure_halted_drafter,
    measure_speed,
)
from serve_app.benchmark.streams import Ask, run_streams
from tests.ingress.fakes import STATISTICS, FakeVerifier, chunks
from tests.serve_app.benchmark.stage import IDS, TWICE, becomes, ingress, sleeper, state, verifier_with


def two_minds(request: GenerateRequest) -> Any:
    """A verifier that breaks the promise: the reply depends on speculation."""
    return chunks("drafted!" if request.speculation.enabled else "hello", size=1)


def test_streams_are_counted_by_the_servers_usage() -> None:
    verifier = FakeVerifier(script=lambda _: chunks("hello", size=2))
    with ingress(verifier) as service:
        asks = [Ask(prompt="Hi", max_tokens=9, speculate=True), Ask(prompt=(1, 2, 3), max_tokens=9, speculate=False)]
        batch = run_streams(service.url, model=service.model, asks=asks)
    assert [reply.text for reply in batch.replies] == ["hello", "hello"]
    assert batch.tokens == 10
    assert batch.tokens_per_second == pytest.approx(10 / batch.seconds)
    assert (batch.drafted, batch.accepted) == (2 * STATISTICS.draft_n, 2 * STATISTICS.draft_n_accepted)
    assert all(0 < reply.first_s < batch.seconds for reply in batch.replies)
    assert batch.replies[0].stream_rate == pytest.approx((STATISTICS.predicted_n - 1) / (STATISTICS.predicted_ms / 1e3))
    by_prompt = {request.prompt_ids: request for request in verifier.requests}
    assert not by_prompt[(1, 2, 3)].speculation.enabled
    assert all(request.sampling.is_greedy and request.max_tokens == 9 for request in verifier.requests)


def test_a_refusal_and_a_failure_end_the_benchmark_with_a_sentence() -> None:
    with ingress(FakeVerifier(script=lambda _: [Unavailable("the device is gone")])) as service:
        ask = Ask(prompt="Hi", max_tokens=9, speculate=True)
        with pytest.raises(Unavailable, match="answered 404"):
            run_streams(service.url, model="another", asks=[ask])
        with pytest.raises(Unavailable, match="the device is gone"):
            run_streams(service.url, model=service.model, asks=[ask])
    with pytest.raises(Unavailable, match="broke off"):
        run_streams(service.url, model=service.model, asks=[ask])


def test_both_sides_of_a_round_get_the_same_prompts_and_differing_replies_are_counted() -> None:
    verifier = FakeVerifier(script=two_minds)
    workload = Workload(name="chat", prompts=("one", "two", "three"), max_tokens=5)
    with ingress(verifier) as service:
        result = measure_speed(service, workload=workload, streams=2, effort=TWICE)
    assert (result.workload, result.streams, result.plain.runs) == ("chat", 2, 2)
    assert result.tokens == 2 * 2 * (len("hello") + len("drafted!"))
    assert result.differing == 4
    assert result.acceptance == STATISTICS.draft_n_accepted / STATISTICS.draft_n
    rounds = [verifier.requests[start : start + 4] for start in (0, 4, 8)]
    for requests in rounds:
        prompts = [request.prompt_ids for request in requests]
        assert sorted(prompts[:2]) == sorted(prompts[2:])
        assert [request.speculation.enabled for request in requests] == [False, False, True, True]
    assert len({request.prompt_ids for request in verifier.requests}) == 3


def test_first_tokens_are_of_prompts_nobody_has_seen() -> None:
    verifier = FakeVerifier()
    with ingress(verifier) as service:
        results = measure_first_token(service, ids=IDS, lengths=(16, 64), effort=TWICE)
    assert [result.prompt_tokens for result in results] == [16, 64]
    assert all(result.seconds.least > 0 and result.seconds.runs == 2 for result in results)
    prompts = [request.prompt_ids for request in verifier.requests]
    assert [len(prompt) for prompt in prompts] == [16, 64] * 3
    assert len(set(prompts)) == 6


def test_only_the_other_runs_meet_a_halted_drafter() -> None:
    states: list[tuple[bool, str]] = []
    with sleeper() as drafter:

        def script(request: GenerateRequest) -> Any:
            states.append((request.speculation.enabled, state(drafter.pid)))
            return chunks("hello")

        with ingress(verifier_with(1, script=script)) as service:
            workload = Workload(name="copy", prompts=("one", "two"), max_tokens=5)
            result = measure_halted_drafter(
                service, workload=workload, streams=2, drafters=lambda: [drafter.pid], effort=TWICE
            )
        assert becomes(drafter.pid, "S")
    # Each round: two plain streams, one that proves the drafter punctual, two halted ones.
    assert states == 3 * [(False, "S"), (False, "S"), (True, "S"), (True, "T"), (True, "T")]
    assert (result.began_live, result.halted.runs, result.differing) == (2, 2, 0)


def test_a_drafter_that_stays_away_is_waited_for_only_so_long() -> None:
    with ingress(verifier_with(0)) as service:
        assert not await_drafter(service, patience_s=0.2)
