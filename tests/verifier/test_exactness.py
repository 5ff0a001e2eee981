"""Exact, in process: with any drafter, any company and any rung a reply is the plain one, token for token.

The reference is each request alone, without drafts. `pytest -s` prints how many tokens were compared.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.lm.quant.linear import Precision
from deployments.verifier.drafts import NoDrafts
from tests.verifier.comparing import DRAFTERS, MOST_DRAFTS, Plain, alone, compared, requests_for, run, write_oracle
from tests.verifier.conftest import LoadGolden

PRECISIONS = (Precision.F32, Precision.BF16, Precision.INT8)
# The rungs of `load_golden`, by rows; `None` is the ladder as it serves.
RUNGS = [
    *((Precision.F32, rows) for rows in (None, 8, 16, 32, 64, 128)),
    *((precision, rows) for precision in PRECISIONS[1:] for rows in (None, 8, 16, 32)),
]


@pytest.fixture(scope="module")
def plain(
    load_golden: LoadGolden, golden_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Precision], Plain]:
    """The reference, once per precision."""
    made: dict[Precision, Plain] = {}

    def make(precision: Precision) -> Plain:
        if precision not in made:
            requests = requests_for(golden_llama)
            replies = alone(load_golden(precision), requests)
            path = tmp_path_factory.mktemp("oracle") / "oracle.json"
            oracle = write_oracle(path, requests=requests, replies=replies)
            made[precision] = Plain(requests=requests, replies=replies, oracle=oracle)
        return made[precision]

    return make


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("precision", "rows"), RUNGS)
def test_replies_are_the_plain_ones(
    load_golden: LoadGolden, plain: Callable[[Precision], Plain], precision: Precision, rows: int | None, drafter: str
) -> None:
    """Eight together, then a greedy and a sampled one alone."""
    model, wanted = load_golden(precision), plain(precision)
    proved = model.report.ladder
    ladder = proved if rows is None else proved.only(next(rung for rung in proved.rungs if rung.rows == rows))

    together = run(model, wanted.requests, drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder)
    tokens = compared(wanted.replies, together)
    for request in wanted.requests[:2]:
        tokens += compared(
            wanted.replies, run(model, [request], drafts=DRAFTERS[drafter](wanted.oracle), ladder=ladder)
        )

    drafted = sum(reply.statistics.draft_n for reply in together.values())
    accepted = sum(reply.statistics.draft_n_accepted for reply in together.values())
    print(f"{precision} {rows} {drafter}: {tokens} tokens compared, {accepted} of {drafted} drafts accepted")
    assert tokens == 472
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_rung_is_proved(load_golden: LoadGolden, precision: Precision) -> None:
    report = load_golden(precision).report

    assert not report.refused
    assert [rung.rows for rung in report.ladder.rungs] == [rows for kind, rows in RUNGS if kind is precision and rows]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_oracle_is_always_accepted(
    load_golden: LoadGolden, plain: Callable[[Precision], Plain], precision: Precision
) -> None:
    """Every window after a prompt's last keeps all its drafts, so a reply takes as few as it can."""
    wanted = plain(precision)
    for request in wanted.requests:
        reply = run(load_golden(precision), [request], drafts=DRAFTERS["oracle"](wanted.oracle))[request.request_id]
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


def test_sampled_replies_are_not_greedy_ones(plain: Callable[[Precision], Plain], load_golden: LoadGolden) -> None:
    """So that the comparison of sampled replies is one: each seed gives its own text."""
    request = plain(Precision.F32).requests[1]
    requests = [replace(request, request_id=f"s{i}", sampling=replace(request.sampling, seed=i)) for i in range(4)]
    replies = run(load_golden(Precision.F32), requests, drafts=NoDrafts())

    assert len({tuple(reply.tokens) for reply in replies.values()}) == 4
