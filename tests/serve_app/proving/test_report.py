from collections.abc import Mapping

import pytest
from rich.console import Console

from deployments.messages.generation import FinishReason, GenerationStatistics
from serve_app.proving.comparison import Reply
from serve_app.proving.report import Proof, Row, row_of

PLAIN = {"a": Reply(token_ids=(1, 2, 3), finish_reason=FinishReason.LENGTH, statistics=GenerationStatistics())}


def row(drafter: str, *, tokens: tuple[int, ...] = (1, 2, 3), rounds: tuple[tuple[int, ...], ...] = ()) -> Row:
    statistics = GenerationStatistics(rounds=rounds)
    replies: Mapping[str, Reply] = {
        "a": Reply(token_ids=tokens, finish_reason=FinishReason.LENGTH, statistics=statistics)
    }
    return row_of(replies, plain=PLAIN, drafter=drafter, company="alone", mode="greedy", seconds=1.0)


GOOD = row("ngram 3", rounds=((0,), (2, 1)))


def test_a_proof_without_mismatches_holds() -> None:
    proof = Proof(rows=[row("off"), GOOD, row("random", rounds=((0,), (1, 0))), row("oracle", rounds=((0,), (0, 1)))])
    assert proof.problems == ()
    assert proof.summary == "tokens compared: 12, mismatches: 0"


def test_the_first_mismatch_is_named_and_counted() -> None:
    proof = Proof(rows=[GOOD, row("off", tokens=(1, 7, 3))])
    assert proof.problems == ("off, alone, greedy: a, position 1: token 7, but plain decoding gave token 2",)
    assert proof.summary == "tokens compared: 6, mismatches: 1"


@pytest.mark.parametrize(
    ("weak", "what"),
    [
        (row("random"), "no draft was verified"),
        (row("oracle"), "no draft was verified"),
        (row("oracle", rounds=((0,), (1, 2))), "1 of 3 right drafts were refused"),
    ],
)
def test_a_row_that_proves_nothing_is_a_problem(weak: Row, what: str) -> None:
    (problem,) = Proof(rows=[GOOD, weak]).problems
    assert what in problem


def test_an_ngram_drafter_that_never_drafts_proves_nothing() -> None:
    (problem,) = Proof(rows=[row("ngram 1"), row("ngram 3")]).problems
    assert problem.startswith("ngram: no draft")


def test_the_table_has_every_row() -> None:
    console = Console(width=120)
    with console.capture() as printed:
        console.print(Proof(rows=[GOOD, row("off")]).table("title"))
    lines = printed.get().splitlines()
    assert lines[0].startswith("title")
    assert any("ngram 3" in line and " 3 " in line for line in lines)
