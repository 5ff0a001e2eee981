"""Exact, in process: with any drafter, any company and any rung a reply is the plain one, token for token.

The reference is each request alone, without drafts. `pytest -s` prints how many tokens were compared.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import FinishReason
from deployments.verifier.drafts import NoDrafts
from tests.verifier.comparing import (
    DRAFTERS,
    MOST_DRAFTS,
    Plain,
    alone,
    compared,
    requests_for,
    run,
    shaped_requests_for,
    write_oracle,
)
from tests.verifier.conftest import LoadGolden

type Build = tuple[Precision, Kernels]

# With native kernels, where there are any, int8 has products and attention of their own, bf16 its attention.
BUILDS: tuple[Build, ...] = (
    (Precision.F32, Kernels.AUTO),
    (Precision.BF16, Kernels.AUTO),
    (Precision.INT8, Kernels.AUTO),
    (Precision.INT8, Kernels.XLA),
)
# The rows of the rungs that `load_golden` proves for each build.
PROVED = {build: (8, 16, 32, 64, 128) if build[0] is Precision.F32 else (8, 16, 32) for build in BUILDS}
# CI's hour has room for every rung of these.
_WHOLE = (BUILDS[0], BUILDS[2])
_EXHAUSTIVE = (pytest.mark.slow, pytest.mark.exhaustive)
# A build with one of its rungs; `None` is the ladder as it serves.
DEFAULT_RUNGS = [(BUILDS[0], 8), (BUILDS[0], 32), *((build, None) for build in _WHOLE)]
RUNGS = [
    *DEFAULT_RUNGS,
    *(pytest.param(build, None, marks=pytest.mark.slow) for build in BUILDS if build not in _WHOLE),
    *(
        pytest.param(build, rows, marks=pytest.mark.slow if build in _WHOLE else _EXHAUSTIVE)
        for build in BUILDS
        for rows in PROVED[build]
        if (build, rows) not in DEFAULT_RUNGS
    ),
]
EACH_BUILD = [pytest.param(build, marks=() if build in _WHOLE else pytest.mark.slow) for build in BUILDS]


@pytest.fixture(scope="module")
def plain(
    load_golden: LoadGolden, golden_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Build], Plain]:
    """The reference, once per build."""
    made: dict[Build, Plain] = {}

    def make(build: Build) -> Plain:
        if build not in made:
            requests = (*requests_for(golden_llama), *shaped_requests_for(golden_llama))
            replies = alone(load_golden(*build), requests)
            path = tmp_path_factory.mktemp("oracle") / "oracle.json"
            oracle = write_oracle(path, requests=requests, replies=replies)
            made[build] = Plain(requests=requests, replies=replies, oracle=oracle)
        return made[build]

    return make


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("build", "rows"), RUNGS)
def test_replies_are_the_plain_ones(
    load_golden: LoadGolden, plain: Callable[[Build], Plain], build: Build, rows: int | None, drafter: str
) -> None:
    """All together, more than there are slots; then a greedy and a sampled one alone."""
    model, wanted = load_golden(*build), plain(build)
    proved = model.report.ladder
    ladder = proved if rows is None else proved.only(next(rung for rung in proved.rungs if rung.rows == rows))

    together = run(model, wanted.requests, drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder)
    tokens = compared(wanted.replies, together)
    once = tokens
    for request in wanted.requests[:2]:
        tokens += compared(
            wanted.replies, run(model, [request], drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder)
        )

    drafted = sum(reply.statistics.draft_n for reply in together.values())
    accepted = sum(reply.statistics.draft_n_accepted for reply in together.values())
    print(f"{build[0]} {build[1]} {rows} {drafter}: {tokens} tokens compared, {accepted} of {drafted} drafts accepted")
    assert once == sum(len(reply.tokens) for reply in wanted.replies.values()) > 520
    assert tokens == once + 48 + 47
    match drafter:
        case "off":
            assert drafted == 0
        case "oracle":
            assert accepted == drafted > 0
        case "random":
            assert drafted > 0
            assert accepted < drafted / 4
        case _:
            assert accepted > 0


@pytest.mark.parametrize("build", EACH_BUILD)
def test_every_rung_is_proved(load_golden: LoadGolden, build: Build) -> None:
    report = load_golden(*build).report

    assert not report.refused
    assert tuple(rung.rows for rung in report.ladder.rungs) == PROVED[build]


@pytest.mark.parametrize("build", EACH_BUILD)
def test_the_oracle_is_always_accepted(load_golden: LoadGolden, plain: Callable[[Build], Plain], build: Build) -> None:
    """Every window after a prompt's last keeps all its drafts, so a reply takes as few as it can."""
    wanted = plain(build)
    for request in wanted.requests:
        reply = run(load_golden(*build), [request], drafts=DRAFTERS["oracle"](wanted.oracle))[request.request_id]
        if reply.finish is FinishReason.STOP:
            continue
        windows = -(-(request.max_tokens - 1) // (MOST_DRAFTS + 1))
        statistics = reply.statistics
        assert statistics.draft_n == statistics.draft_n_accepted == request.max_tokens - 1 - windows
        assert reply.chunks == 1 + windows
        assert statistics.draft_kind == "oracle"


def test_plain_greedy_texts_are_the_peers(load_golden: LoadGolden, golden_llama: Path) -> None:
    """`ref.npz` of the f32 network, through the engine this time, with and without n-gram drafts."""
    model = load_golden(Precision.F32)
    with np.load(golden_llama / "ref.npz") as stored:
        wanted = {f"r{i}": (tuple(stored[f"prompt_{i}"].tolist()), stored[f"greedy_{i}"].tolist()) for i in range(3)}
    template = requests_for(golden_llama)[0]
    requests = [replace(template, request_id=name, prompt_ids=prompt) for name, (prompt, _) in wanted.items()]
    for drafts in (NoDrafts(), DRAFTERS["ngram-3"](Path())):
        replies = run(model, requests, drafts=drafts)
        assert {name: reply.tokens for name, reply in replies.items()} == {n: text for n, (_, text) in wanted.items()}


def test_sampled_replies_are_not_greedy_ones(plain: Callable[[Build], Plain], load_golden: LoadGolden) -> None:
    """So that the comparison of sampled replies is one: each seed gives its own text."""
    request = plain(BUILDS[0]).requests[1]
    requests = [replace(request, request_id=f"s{i}", sampling=replace(request.sampling, seed=i)) for i in range(4)]
    replies = run(load_golden(Precision.F32), requests, drafts=NoDrafts())

    assert len({tuple(reply.tokens) for reply in replies.values()}) == 4
