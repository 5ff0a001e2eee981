"""Every family is exact, in process: with any drafter and any company a reply is the plain one, token for token.

What `test_exactness.py` does for llama, in a smaller grid. The reference is each request alone, without drafts.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.verifier.ladder import Ladder
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings
from tests.verifier.comparing import DRAFTERS, Plain, alone, compared, requests_for, run, write_oracle

# By folder of `tests/data/golden`; those that take long to compile are left to the slow tests.
FAMILIES = (
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "granite",
    "exaone",
    "exaone4",
    "gemma3",
    "gemma4_e",
    "gemma4_dense",
    "gemma4_moe",
)
LONG = ("exaone4_hybrid",)
# Two with most kinds of layers; the others share their code.
QUICK = frozenset({"qwen3_5_moe", "gemma4_e"})
BUILDS = (
    (Precision.F32, Kernels.AUTO),
    (Precision.BF16, Kernels.AUTO),
    (Precision.INT8, Kernels.AUTO),
    (Precision.INT8, Kernels.XLA),
)
# Each family in one build; all others are many more minutes of the same.
GRID = [
    pytest.param(family, *build, marks=() if place == number % len(BUILDS) else pytest.mark.exhaustive)
    for number, family in enumerate((*FAMILIES, *LONG))
    for place, build in enumerate(BUILDS)
]


def load(folder: Path, *, precision: Precision, kernels: Kernels, ladder: tuple[int, ...], draft_k: int) -> LoadedModel:
    """With eight slots and pages of 16."""
    settings = ModelSettings(
        model_path=str(next(folder.glob("*.gguf"))),
        precision=precision,
        kernels=kernels,
        slots=8,
        context=512,
        page_size=16,
        draft_k=draft_k,
        ladder=ladder,
    )
    return load_model(settings, progress=lambda text: None)


def plain(model: LoadedModel, *, golden_llama: Path, oracle: Path, most: int) -> Plain:
    """Eight requests, every second one greedy, of at most so many tokens each; and their plain replies."""
    requests = tuple(
        replace(request, max_tokens=min(request.max_tokens, most)) for request in requests_for(golden_llama)
    )
    replies = alone(model, requests)
    return Plain(requests=requests, replies=replies, oracle=write_oracle(oracle, requests=requests, replies=replies))


def assert_exact(model: LoadedModel, *, wanted: Plain, drafter: str, ladder: Ladder) -> None:
    """All together, then a greedy and a sampled one alone."""
    total = sum(len(reply.tokens) for reply in wanted.replies.values())
    together = run(model, wanted.requests, drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder)
    assert compared(wanted.replies, together) == total > 0
    for request in wanted.requests[:2]:
        compared(wanted.replies, run(model, [request], drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder))

    drafted = sum(reply.statistics.draft_n for reply in together.values())
    accepted = sum(reply.statistics.draft_n_accepted for reply in together.values())
    match drafter:
        case "off":
            assert drafted == 0
        case "oracle":
            assert accepted == drafted > 0
        case "random":
            assert drafted > accepted


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]
)
def test_replies_are_the_plain_ones(goldens: Path, golden_llama: Path, tmp_path: Path, family: str) -> None:
    model = load(goldens / family, precision=Precision.F32, kernels=Kernels.AUTO, ladder=(8, 16), draft_k=3)
    assert not model.report.refused
    wanted = plain(model, golden_llama=golden_llama, oracle=tmp_path / "oracle.json", most=24)

    for drafter in ("off", "ngram-3", "random", "oracle"):
        assert_exact(model, wanted=wanted, drafter=drafter, ladder=model.report.ladder)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("family", "precision", "kernels"), GRID)
def test_replies_are_the_plain_ones_in_every_rung_and_precision(
    goldens: Path, golden_llama: Path, tmp_path: Path, family: str, precision: Precision, kernels: Kernels
) -> None:
    model = load(goldens / family, precision=precision, kernels=kernels, ladder=(8, 16, 32, 64), draft_k=7)
    assert not model.report.refused
    wanted = plain(model, golden_llama=golden_llama, oracle=tmp_path / "oracle.json", most=48)

    for drafter in DRAFTERS:
        assert_exact(model, wanted=wanted, drafter=drafter, ladder=model.report.ladder)
    for rung in model.report.ladder.rungs:
        for drafter in ("off", "random", "oracle"):
            assert_exact(model, wanted=wanted, drafter=drafter, ladder=model.report.ladder.only(rung))
