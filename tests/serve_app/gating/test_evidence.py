"""Evidence: numbers that contradict each other are no evidence."""

from collections.abc import Callable

import msgspec
import pytest

from serve_app.gating.evidence import Difference, DrafterProof, ExactnessEvidence, ProfitEvidence, ProfitPoint, Ratio
from tests.serve_app.gating.making import PROOF, WRONG, point

replace = msgspec.structs.replace


def test_sums_go_over_all_drafters() -> None:
    evidence = ExactnessEvidence(drafters={"ngram": PROOF, "oracle": WRONG})
    assert (evidence.tokens, evidence.mismatches, evidence.drafts) == (8192, 3, 4000)
    assert evidence.first == WRONG.first
    assert str(evidence.first) == "prompt mt_bench-81, position 17: token 338 was wanted, the end came"
    assert ExactnessEvidence(drafters={"ngram": PROOF}).first is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: DrafterProof(tokens=1, mismatches=1, drafts=0, accepted=0),
        lambda: DrafterProof(
            tokens=1,
            mismatches=0,
            drafts=0,
            accepted=0,
            first=Difference(prompt="p", position=0, wanted=1, got=2),
        ),
        lambda: DrafterProof(tokens=1, mismatches=0, drafts=1, accepted=2),
        lambda: Ratio(median=1.5, min=1.6, max=1.7),
        lambda: Ratio(median=float("nan"), min=0.0, max=2.0),
        lambda: replace(point(1, 1.5), window_ms=float("inf")),
        lambda: ProfitEvidence(points=(point(2, 1.5), point(1, 1.5))),
        lambda: ProfitEvidence(points=(point(1, 1.5), point(1, 1.5))),
    ],
)
def test_contradictions_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"cannot|difference|finite|between|rise"):
        make()


def test_numbers_out_of_range_are_not_read() -> None:
    raw = msgspec.to_builtins(point(1, 1.5))
    for name, value in {"active": 0, "k": 0, "acceptance": [1.2], "plain_tokens_s": -1, "by_k": {"0": 1.0}}.items():
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(raw | {name: value}, ProfitPoint)


def test_tokens_per_round_follow_from_acceptance() -> None:
    assert replace(point(1, 1.5), acceptance=(0.5, 0.5, 0.5), k=2).tokens_per_round == 1.75
    assert replace(point(1, 1.5), acceptance=()).tokens_per_round == 1.0


def test_the_best_point_has_the_largest_ratio() -> None:
    best = ProfitEvidence(points=(point(1, 1.2), point(2, 1.6), point(4, 0.7))).best
    assert best is not None
    assert best.active == 2
    assert ProfitEvidence().best is None
