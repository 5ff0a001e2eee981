"""Whole replies under penalties, biases and `min_tokens`, checked token by token against plain arithmetic on the
model's own logits, which a teacher-forced run through other windows gives."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.special import log_softmax

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import FinishReason, GenerateRequest, SamplingSettings
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.loading import LoadedModel
from deployments.verifier.programs import Programs
from tests.lm.sampling.test_shaping import Chain, expected
from tests.verifier.comparing import DRAFTERS, GREEDY, compared, requests_for, run, shaped_requests_for, write_oracle
from tests.verifier.conftest import LoadGolden
from tests.verifier.forcing import forced_logits, network, programs_for
from tests.verifier.serving import Reply, Tallies


@pytest.fixture(scope="module")
def model(load_golden: LoadGolden) -> LoadedModel:
    """With the kernels that `forcing` has, so that both compute the same logits."""
    return load_golden(Precision.INT8, Kernels.XLA)


@pytest.fixture(scope="module")
def forcing(model: LoadedModel) -> Programs:
    path = model.settings.model_path
    return programs_for(
        network(path, precision=Precision.INT8), precision=Precision.INT8, rows=16, context=512, page_size=16
    )


def logits_along(forcing: Programs, request: GenerateRequest, reply: Sequence[int]) -> np.ndarray:
    """The model's logits before each token of a reply."""
    forcing.clear_cache()
    scores = forced_logits(forcing, (*request.prompt_ids, *reply))
    return scores[len(request.prompt_ids) - 1 : -1]


def one(model: LoadedModel, request: GenerateRequest, *, drafter: str = "off", oracle: Path = Path()) -> Reply:
    return run(model, [request], drafts=DRAFTERS[drafter](oracle))[request.request_id]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_greedy_replies_take_the_likeliest_token_of_the_changed_logits(
    model: LoadedModel, forcing: Programs, golden_llama: Path, number: int
) -> None:
    request = shaped_requests_for(golden_llama)[number]
    reply = one(model, request).tokens
    assert len(reply) >= 20
    for place, logits in enumerate(logits_along(forcing, request, reply)):
        chain = Chain(
            prompt=request.prompt_ids,
            reply=tuple(reply[:place]),
            sampling=request.sampling,
            min_tokens=request.min_tokens,
            end_ids=request.end_ids,
        )
        wanted = expected(logits, chain=chain, place=0)
        assert wanted[reply[place]] >= wanted.max() - 1e-4
    plain = replace(request, sampling=GREEDY, min_tokens=0, end_ids=())
    assert one(model, plain).tokens[: len(reply)] != reply


@pytest.mark.parametrize("number", [0, 3, 4])
def test_logprobs_are_those_of_the_models_own_logits(
    model: LoadedModel, forcing: Programs, golden_llama: Path, tmp_path: Path, number: int
) -> None:
    """Also for tokens that were drafts."""
    request = shaped_requests_for(golden_llama)[number]
    plain = one(model, request)
    oracle = write_oracle(tmp_path / "oracle.json", requests=[request], replies={request.request_id: plain})
    reply = one(model, request, drafter="oracle", oracle=oracle)
    assert reply.statistics.draft_n_accepted > 0
    assert len(reply.logprobs) == len(reply.tokens) == 40
    wanted = log_softmax(logits_along(forcing, request, reply.tokens).astype(np.float64), axis=-1)
    for token, found, row in zip(reply.tokens, reply.logprobs, wanted, strict=True):
        assert found.logprob == pytest.approx(row[token], abs=1e-4)
        assert len(found.top) == request.logprobs
        assert [value for _, value in found.top] == pytest.approx(np.sort(row)[::-1][: len(found.top)], abs=1e-4)
        assert [row[other] for other, _ in found.top] == pytest.approx([value for _, value in found.top], abs=1e-4)


@pytest.mark.parametrize("drafter", ["off", "ngram-7", "random"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_forbids_and_forces(model: LoadedModel, golden_llama: Path, temperature: float, drafter: str) -> None:
    request = replace(requests_for(golden_llama)[0], sampling=SamplingSettings(temperature=temperature, seed=4))
    said = one(model, request).tokens
    banned = tuple((token, -100.0) for token in sorted(set(said)))
    without = one(model, replace(request, sampling=replace(request.sampling, logit_bias=banned)), drafter=drafter)
    forced = one(
        model, replace(request, sampling=replace(request.sampling, logit_bias=((77, 100.0),))), drafter=drafter
    )

    assert not set(without.tokens) & set(said)
    assert set(forced.tokens) == {77}


@pytest.mark.parametrize("drafter", ["off", "ngram-7"])
def test_ends_wait_for_min_tokens_and_may_be_ignored(model: LoadedModel, golden_llama: Path, drafter: str) -> None:
    """An end that is as likely as can be comes with the first token it may come with, and not before."""
    request = replace(
        requests_for(golden_llama)[0],
        sampling=replace(GREEDY, logit_bias=((9, 100.0),)),
        end_ids=(9,),
        max_tokens=12,
    )
    for least in (0, 1, 5, 11):
        reply = one(model, replace(request, min_tokens=least), drafter=drafter)
        assert (len(reply.tokens), reply.finish) == (least, FinishReason.STOP)
        assert 9 not in reply.tokens
    reply = one(model, replace(request, min_tokens=3, ignore_eos=True), drafter=drafter)
    assert reply.tokens[3:] == [9] * 9
    assert 9 not in reply.tokens[:3]
    assert reply.finish is FinishReason.LENGTH


def test_neighbours_that_ask_for_everything_change_nothing(model: LoadedModel, golden_llama: Path) -> None:
    """Nor are log-probabilities delivered to those who did not ask."""
    plain, shaped = requests_for(golden_llama)[:3], shaped_requests_for(golden_llama)
    alone = {request.request_id: one(model, request) for request in plain}
    together = run(model, [*plain, *shaped], drafts=NoDrafts())

    for name, reply in alone.items():
        assert together[name].tokens == reply.tokens
        assert together[name].logprobs == []


def test_an_oracle_that_does_not_know_of_penalties_is_refused_and_nothing_breaks(
    model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    request = shaped_requests_for(golden_llama)[0]
    unshaped = one(model, replace(request, sampling=GREEDY))
    oracle = write_oracle(tmp_path / "oracle.json", requests=[request], replies={request.request_id: unshaped})
    reply = one(model, request, drafter="oracle", oracle=oracle)

    assert reply.tokens == one(model, request).tokens
    assert reply.statistics.draft_n_accepted < reply.statistics.draft_n


@pytest.mark.parametrize("drafter", ["off", "ngram-7"])
def test_histories_survive_preemption(model: LoadedModel, golden_llama: Path, drafter: str) -> None:
    """Somebody, no matter who, loses its slot before every fourth window; log-probabilities are compared too."""
    requests = shaped_requests_for(golden_llama)
    wanted = {request.request_id: one(model, request) for request in requests}
    engine = model.engine(drafts=DRAFTERS[drafter](Path()), metrics=Tallies())
    replies = {request.request_id: Reply() for request in requests}
    for request in requests:
        engine.submit(request)
    random, preempted = Random(drafter), 0
    while not engine.is_idle:
        if engine.scheduler.active and random.random() < 0.25:
            engine.scheduler.preempt(random.choice(engine.scheduler.active))
            preempted += 1
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)

    assert compared(wanted, replies) > 160
    assert preempted > 5
