"""The whole check on a small model: what passes, and that what is made wrong on purpose fails."""

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from deployments.verifier.loading import LoadedModel
from serve_app.gating import running
from serve_app.gating.checks.check import Outcome, run_check
from serve_app.gating.checks.drafters import CheckedDrafter
from serve_app.gating.checks.steps import Unwatched
from serve_app.gating.encoding import decode_gates, encode_gates
from serve_app.gating.policy import Candidate, State, Why, decide
from serve_app.gating.records import Reason, Verdict
from serve_app.gating.snapshot import Snapshot
from tests.serve_app.gating.checks.small import (
    SHORT,
    Costs,
    KnowingDrafts,
    lenient,
    onboard_ngram,
    priced,
    replies_of,
    small_model,
    small_questions,
)


def checked(
    model: LoadedModel,
    *,
    drafter: CheckedDrafter,
    numbers: tuple[int, ...] = (1, 2),
    prompts: int = 1,
    costs: Costs | None = None,
) -> Outcome:
    """With `costs`, by their clock: what it measures does not depend on how busy this machine is."""
    return run_check(
        model if costs is None else priced(model, costs=costs),
        drafters=[drafter],
        asked=small_questions(model, prompts=max(prompts, 4)),
        numbers=numbers,
        efforts=replace(SHORT, prompts=prompts),
        steps=Unwatched(),
        clock=costs or time.perf_counter,
    )


def test_a_right_verifier_with_a_good_drafter_passes_and_decides(model: LoadedModel) -> None:
    costs = Costs()
    drafts = KnowingDrafts(replies_of(model, small_questions(model)), pause_s=0.001, costs=costs)
    outcome = checked(model, drafter=onboard_ngram(model, serving=drafts), numbers=(1, 2, 64), costs=costs)
    assert outcome.has_passed
    evidence = outcome.exactness.evidence
    assert set(evidence.drafters) == {"off", "ngram", "random", "oracle", "mixed"}
    assert evidence.mismatches == 0
    assert min(proof.tokens for proof in evidence.drafters.values()) > 50
    assert evidence.drafters["off"].drafts == 0
    assert evidence.drafters["random"].drafts > 0
    assert evidence.drafters["oracle"].accepted == evidence.drafters["oracle"].drafts > 0
    mixed = evidence.drafters["mixed"]
    assert 0 < mixed.accepted < mixed.drafts
    assert evidence.rungs == (8, 16)
    (profit,) = outcome.profits
    assert [point.active for point in profit.evidence.points] == [1, 2]
    best = profit.evidence.best
    assert best is not None
    # Four tokens for a window and its drafts, 11 ms, where one token costs 10; the ends of replies blur it a little.
    assert 3.0 < best.ratio.median <= 4.0
    assert (best.k, best.drafter_ms) == (3, 1.0)
    assert set(best.acceptance) == {1.0}
    assert best.plain_window_ms > 0
    assert best.window_ms > 0
    assert best.rounds > 0
    assert set(profit.evidence.points[0].by_k) == {1, 2, 3}
    gates = decode_gates(encode_gates(Snapshot.of(outcome.records, revision=1)).encode())
    decision = decide(gates, candidates=[Candidate(kind="ngram", key=profit.key)], slots=4)
    assert decision.state is State.SETTLED
    assert decision.k_for(1) > 0


def test_a_verifier_that_accepts_one_wrong_token_in_a_thousand_fails_with_its_place(model: LoadedModel) -> None:
    outcome = checked(lenient(model, every=1000), drafter=onboard_ngram(model), prompts=16)
    record = outcome.exactness
    assert (record.verdict, record.reason) == (Verdict.FAIL, Reason.INEXACT)
    assert not outcome.profits
    assert not outcome.has_passed
    first = record.evidence.first
    assert first is not None
    assert first.wanted != first.got
    assert str(first) in record.detail
    plain = replies_of(model, small_questions(model, prompts=16))[first.prompt]
    assert plain[first.position] == first.wanted


def test_a_slow_drafter_fails_for_profit(model: LoadedModel) -> None:
    costs = Costs()
    drafts = KnowingDrafts(replies_of(model, small_questions(model)), pause_s=0.05, costs=costs)
    outcome = checked(model, drafter=onboard_ngram(model, serving=drafts), costs=costs)
    assert outcome.exactness.has_passed
    assert not outcome.has_passed
    (profit,) = outcome.profits
    assert (profit.verdict, profit.reason) == (Verdict.FAIL, Reason.NOT_FASTER)
    assert [point.drafter_ms for point in profit.evidence.points] == [50.0, 50.0]
    assert all(0.5 < point.ratio.max < 0.8 for point in profit.evidence.points)
    gates = Snapshot.of(outcome.records, revision=1)
    decision = decide(gates, candidates=[Candidate(kind="ngram", key=profit.key)], slots=4)
    assert decision.reason is Why.NOT_FASTER
    assert not any(decision.k_by_active_slots)


@pytest.mark.slow
def test_the_same_settings_make_the_same_key(model: LoadedModel, golden_llama: Path) -> None:
    again = small_model(golden_llama / "llama.f16.gguf")
    assert running.exactness_key(again.facts()) == running.exactness_key(model.facts())
    assert msgspec.json.encode(again.facts()) == msgspec.json.encode(model.facts())
