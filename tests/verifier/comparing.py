"""What the exactness tests compare: eight requests, the drafters, and replies token for token."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import DraftSource, NoDrafts
from deployments.verifier.ladder import Ladder
from deployments.verifier.loading import LoadedModel
from deployments.verifier.onboard import OnboardDrafts
from tests.verifier.serving import Reply, Tallies, serve

VOCABULARY, MOST_DRAFTS = 512, 7
GREEDY = SamplingSettings(temperature=0.0)
# What each of the eight requests samples with: the alone ones are the first two.
SAMPLERS = (
    GREEDY,
    SamplingSettings(temperature=1.0, seed=1),
    GREEDY,
    SamplingSettings(temperature=0.8, top_p=0.9, seed=3),
    GREEDY,
    SamplingSettings(temperature=1.2, top_k=20, top_p=0.95, min_p=0.02, seed=5),
    SamplingSettings(temperature=0.3, seed=2**32 - 1),
    SamplingSettings(temperature=1.5, min_p=0.05, seed=7),
)

type Drafter = Callable[[Path], DraftSource]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Requests and their plain replies, each alone; and a file for the oracle."""

    requests: tuple[GenerateRequest, ...]
    replies: Mapping[str, Reply]
    oracle: Path


def prompts(golden_llama: Path) -> list[tuple[int, ...]]:
    """Distinct ones of 5, 40, 120, 300, 16, 15, 17 and 64 tokens: shorter than a page, at its borders, longer than
    several chunks. Only the first three are the golden ones; repeats give n-gram lookup something to find."""
    with np.load(golden_llama / "ref.npz") as stored:
        short, middle, long = (tuple(int(token) for token in stored[f"prompt_{i}"]) for i in range(3))
    return [middle, long, short, (long + middle) * 2, long[:16], middle[:15], long[50:67], long[60:92] * 2][:8]


def requests_for(golden_llama: Path) -> tuple[GenerateRequest, ...]:
    texts = prompts(golden_llama)
    return tuple(
        GenerateRequest(
            request_id=f"r{number}", prompt_ids=texts[number], max_tokens=48 - number % 3, sampling=sampling
        )
        for number, sampling in enumerate(SAMPLERS)
    )


def shaped_requests_for(golden_llama: Path) -> tuple[GenerateRequest, ...]:
    """Five whose logits are changed before they draw, in all the ways there are; some report log-probabilities too."""
    # Each its own: an oracle knows a text by its beginning.
    texts = [(*text, 300 + number) for number, text in enumerate(prompts(golden_llama))]
    ends = tuple(range(0, VOCABULARY, 5))
    bias = tuple((token, float(token % 7) - 3.0) for token in range(0, VOCABULARY, 3))
    everything = SamplingSettings(
        temperature=0.9,
        top_p=0.9,
        seed=17,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=bias,
    )
    template = GenerateRequest(request_id="", prompt_ids=texts[1], max_tokens=40)
    return (
        replace(template, request_id="x0", sampling=replace(GREEDY, repetition_penalty=1.3), logprobs=3),
        replace(
            template,
            request_id="x1",
            prompt_ids=texts[2],
            sampling=SamplingSettings(seed=11, presence_penalty=0.8, frequency_penalty=0.5),
        ),
        replace(
            template,
            request_id="x2",
            prompt_ids=texts[5],
            sampling=replace(GREEDY, frequency_penalty=1.5),
            min_tokens=20,
            end_ids=ends,
        ),
        replace(
            template,
            request_id="x3",
            prompt_ids=texts[3],
            sampling=everything,
            end_ids=ends,
            ignore_eos=True,
            min_tokens=7,
            logprobs=20,
        ),
        replace(
            template, request_id="x4", prompt_ids=texts[7], sampling=replace(GREEDY, repetition_penalty=0.8), logprobs=0
        ),
    )


def run(
    model: LoadedModel, requests: Sequence[GenerateRequest], *, drafts: DraftSource, ladder: Ladder | None = None
) -> dict[str, Reply]:
    return serve(model.engine(drafts=drafts, metrics=Tallies(), ladder=ladder), requests)


def alone(model: LoadedModel, requests: Sequence[GenerateRequest]) -> dict[str, Reply]:
    return {request.request_id: run(model, [request], drafts=NoDrafts())[request.request_id] for request in requests}


def write_oracle(path: Path, *, requests: Sequence[GenerateRequest], replies: Mapping[str, Reply]) -> Path:
    path.write_text(json.dumps([[*r.prompt_ids, *replies[r.request_id].tokens] for r in requests]))
    return path


def compared(plain: Mapping[str, Reply], replies: Mapping[str, Reply]) -> int:
    """How many tokens were compared; fails at the first that differs."""
    for name, reply in replies.items():
        assert reply.tokens == plain[name].tokens, name
        assert reply.finish == plain[name].finish, name
        assert reply.logprobs == plain[name].logprobs, name
    return sum(len(reply.tokens) for reply in replies.values())


def onboard(settings: NgramSettings | NoiseSettings | OracleSettings) -> DraftSource:
    return OnboardDrafts(build_strategy(settings))


DRAFTERS: dict[str, Drafter] = {
    "off": lambda oracle: NoDrafts(),
    "ngram-1": lambda oracle: onboard(NgramSettings(max_k=1)),
    "ngram-3": lambda oracle: onboard(NgramSettings(max_k=3)),
    "ngram-7": lambda oracle: onboard(NgramSettings(max_k=7)),
    "random": lambda oracle: onboard(NoiseSettings(vocab_size=VOCABULARY, max_k=MOST_DRAFTS)),
    "oracle": lambda oracle: onboard(OracleSettings(path=str(oracle), max_k=MOST_DRAFTS)),
}
