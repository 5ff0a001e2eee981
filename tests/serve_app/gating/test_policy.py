"""What the gates come to: order, limits from evidence, operators, and the reason given."""

from typing import Any

import msgspec
import pytest

from serve_app.gating.evidence import ProfitEvidence
from serve_app.gating.policy import Candidate, Decision, Order, State, Why, decide, decide_picked, limits
from serve_app.gating.records import ExactnessRecord, ProfitRecord, Reason, Setting, Verdict
from serve_app.gating.snapshot import Snapshot
from tests.serve_app.gating.making import MEASURED, exactness, forced, key, point, profit, profit_key

SLOTS = 8
NGRAM = Candidate(kind="ngram", key=profit_key("ngram"))
DRAFT = Candidate(kind="draft_model", key=profit_key("draft_model"))
MTP = Candidate(kind="mtp", key=None, why_not="this model has no MTP head")
CANDIDATES = (MTP, DRAFT, NGRAM)


def gates(*records: Any) -> Snapshot:
    return Snapshot.of(records, revision=5)


def auto(*records: Any, **options: Any) -> Decision:
    return decide(gates(*records), candidates=CANDIDATES, slots=SLOTS, **options)


def picked(*records: Any) -> Decision:
    return decide_picked(gates(*records), candidate=NGRAM, slots=SLOTS)


def draft_profit(**options: Any) -> ProfitRecord:
    return profit(profit_key("draft_model"), **options)


def test_nothing_is_run_where_nothing_was_measured() -> None:
    found = auto()
    assert (found.kind, found.state, found.reason, found.gated) == (None, State.UNKNOWN, Why.NOT_GATED, False)
    assert "mtp: this model has no MTP head" in found.sentence
    assert "ngram: not gated on this chip: no record of exactness applies" in found.sentence
    assert found.revision == 5
    assert [found.k_for(active) for active in range(SLOTS + 2)] == [0] * (SLOTS + 2)


def test_what_passed_runs_within_its_evidence() -> None:
    found = auto(exactness(), profit(ratios={1: 1.6, 2: 1.3, 4: 0.9, 8: 0.8}))
    assert (found.kind, found.state, found.reason, found.gated) == ("ngram", State.SETTLED, Why.PASSED, True)
    assert found.k_by_active_slots == (7, 7, 0, 0, 0, 0, 0, 0)
    assert found.stop_above == 2
    assert "1.60 times as fast at 1 active slots" in found.sentence


def test_speculation_stops_where_it_was_measured_to_lose() -> None:
    """The crossover: faster at 3, slower at 4."""
    found = auto(exactness(), profit(ratios={1: 1.6, 2: 1.4, 3: 1.2, 4: 0.9, 8: 0.8}))
    assert found.stop_above == 3
    assert (found.k_for(3), found.k_for(4), found.k_for(0), found.k_for(99)) == (7, 0, 0, 0)


def test_no_limit_where_it_pays_with_all_slots() -> None:
    assert auto(exactness(), profit(ratios={1: 1.6, 8: 1.1})).stop_above is None


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (((1, 1.5, 7), (4, 1.2, 3)), (7, 3, 3, 3, 0, 0)),
        (((1, 1.5, 3), (4, 1.2, 7)), (3, 3, 3, 7, 0, 0)),
        (((2, 1.5, 7),), (0, 7, 0, 0, 0, 0)),
        (((1, 0.9, 7), (2, 1.5, 7), (6, 1.5, 7)), (0, 7, 7, 7, 7, 7)),
        (((1, 1.5, 7), (3, 1.019, 7), (6, 1.5, 7)), (7, 0, 0, 0, 0, 7)),
        (((1, 1.02, 9), (9, 1.02, 9)), (8, 8, 8, 8, 8, 8)),
        ((), (0, 0, 0, 0, 0, 0)),
    ],
)
def test_between_two_numbers_the_worse_counts_and_beyond_them_nothing(
    points: tuple[tuple[int, float, int], ...], expected: tuple[int, ...]
) -> None:
    evidence = ProfitEvidence(points=tuple(point(active, ratio, k=k) for active, ratio, k in points))
    assert limits(evidence, slots=6, k_max=8) == expected


def test_the_order_of_the_documents_and_the_fastest() -> None:
    records = (exactness(), draft_profit(ratios={1: 1.2, 8: 1.2}), profit(ratios={1: 1.5, 8: 1.4}))
    assert auto(*records).kind == "draft_model"
    assert auto(*records, order=Order.FASTEST).kind == "ngram"


def test_the_fastest_is_so_over_all_loads() -> None:
    records = (exactness(), draft_profit(ratios={1: 1.3, 8: 1.25}), profit(ratios={1: 2.0, 2: 0.9, 8: 0.9}))
    assert auto(*records, order=Order.FASTEST).kind == "draft_model"


def test_what_failed_is_passed_over() -> None:
    found = auto(exactness(), draft_profit(ratios={1: 0.9}), profit())
    assert found.kind == "ngram"
    only = auto(exactness(), draft_profit(ratios={1: 0.9}), profit(ratios={1: 0.8}))
    assert (only.kind, only.state, only.reason) == (None, State.DECLINED, Why.NOT_FASTER)
    assert "draft_model: fail (not_faster); ngram: fail (not_faster)" in only.sentence


def test_what_can_still_be_measured_is_said_first() -> None:
    found = auto(exactness(), draft_profit(ratios={1: 0.9}))
    assert (found.kind, found.state, found.reason) == (None, State.UNKNOWN, Why.NOT_GATED)


def test_a_gain_that_may_be_noise_is_none() -> None:
    found = auto(exactness(), profit(ratios={1: 1.01, 8: 1.01}))
    assert (found.kind, found.reason) == (None, Why.NOT_GATED)
    assert "no measured gain reaches 1.02 at up to 8 active slots" in found.sentence
    assert auto(exactness(), profit(ratios={1: 1.01, 8: 1.01}), least_gain=1.0).kind == "ngram"


def test_a_record_for_something_else_does_not_apply_and_says_why() -> None:
    elsewhere = key(jax="0.11.0")
    found = auto(exactness(elsewhere), profit(profit_key(program=elsewhere)))
    assert found.kind is None
    assert "the nearest does not: jax 0.11.0 != 0.12.0" in found.sentence


def test_exactness_is_needed_whatever_it_gains() -> None:
    assert auto(profit()).reason is Why.NOT_GATED
    found = auto(exactness(is_exact=False), profit())
    assert (found.kind, found.state, found.reason) == (None, State.DECLINED, Why.INEXACT)


def test_a_check_that_did_not_run_is_no_pass() -> None:
    stopped = ExactnessRecord(
        key=key(), verdict=Verdict.DID_NOT_RUN, reason=Reason.FAILED, detail="out of memory", measured=MEASURED
    )
    found = auto(stopped, profit())
    assert (found.kind, found.state) == (None, State.UNKNOWN)
    assert "the check of exactness did not run (failed: out of memory)" in found.sentence


def test_forced_off_decides() -> None:
    found = auto(exactness(), profit(), forced(Setting.OFF))
    assert (found.kind, found.state, found.reason) == (None, State.DECLINED, Why.DISABLED_BY_OPERATOR)
    assert "forced off by alice: the chip is hot" in found.sentence
    assert auto(exactness(), draft_profit(), profit(), forced(kind="draft_model")).kind == "ngram"


def test_forced_on_runs_first_without_limits_and_is_never_gated() -> None:
    found = auto(exactness(), draft_profit(), profit(ratios={1: 0.5}), forced(Setting.ON, kind="ngram"))
    assert (found.kind, found.state, found.reason, found.gated) == ("ngram", State.FORCED, Why.FORCED_ON, False)
    assert found.k_by_active_slots == (7,) * SLOTS
    assert found.stop_above is None
    assert auto(forced(Setting.ON)).kind == "draft_model"


def test_nobody_forces_what_was_shown_to_be_inexact() -> None:
    for found in (auto(exactness(is_exact=False), forced(Setting.ON)), picked(exactness(is_exact=False))):
        assert (found.kind, found.reason) == (None, Why.INEXACT)


def test_a_kind_picked_by_hand_runs_and_says_it_is_not_gated() -> None:
    found = picked()
    assert (found.kind, found.state, found.reason, found.gated) == ("ngram", State.UNKNOWN, Why.NOT_GATED, False)
    assert found.sentence.startswith("picked by hand; ngram: not gated on this chip")
    assert found.k_by_active_slots == (7,) * SLOTS
    slow = picked(exactness(), profit(ratios={1: 0.9}))
    assert (slow.kind, slow.state, slow.reason, slow.gated) == ("ngram", State.FORCED, Why.NOT_FASTER, False)


def test_a_kind_picked_by_hand_that_passed_keeps_its_limits() -> None:
    found = picked(exactness(), profit(ratios={1: 1.6, 2: 1.3, 4: 0.9}))
    assert (found.kind, found.state, found.gated, found.stop_above) == ("ngram", State.SETTLED, True, 2)


def test_a_kind_picked_by_hand_is_off_where_forced_off_or_impossible() -> None:
    assert picked(forced(Setting.OFF)).reason is Why.DISABLED_BY_OPERATOR
    found = decide_picked(gates(), candidate=MTP, slots=SLOTS)
    assert (found.kind, found.state, found.reason) == (None, State.DECLINED, Why.NOT_APPLICABLE)


def test_without_candidates_there_is_an_answer_too() -> None:
    found = decide(gates(), candidates=(), slots=SLOTS)
    assert (found.kind, found.reason, found.sentence) == (None, Why.NOT_APPLICABLE, "no drafter is configured")


def test_k_never_exceeds_the_pairing() -> None:
    pairing = msgspec.structs.replace(profit_key(), k_max=3)
    candidate = Candidate(kind="ngram", key=pairing)
    found = decide(gates(exactness(), profit(pairing, ratios={1: 1.5, 8: 1.5})), candidates=[candidate], slots=SLOTS)
    assert found.k_by_active_slots == (3,) * SLOTS


def test_what_runs_knows_what_was_measured_where_it_paid() -> None:
    found = auto(exactness(), profit(ratios={1: 1.6, 3: 1.3, 4: 0.9}))
    assert [(each.active, each.gain) for each in found.expected] == [(1, 1.6), (2, 1.3), (3, 1.3)]
    # 1 + 0.7 + 0.7 x 0.5 + 0.7 x 0.5 x 0.25
    assert found.expected[0].tokens_per_round == pytest.approx(2.1375)
    assert (found.expected[0].plain_window_ms, found.expected[0].window_ms) == (20.0, 26.5)
    by_hand = picked(exactness(), profit(ratios={1: 1.6, 3: 1.3, 4: 0.9}))
    assert by_hand.expected == found.expected


def test_what_an_operator_lets_run_is_held_against_a_record_that_passed() -> None:
    forced_on = auto(exactness(), profit(), forced(Setting.ON, kind="ngram"))
    assert forced_on.stop_above is None
    assert [each.active for each in forced_on.expected] == [1, 2]


@pytest.mark.parametrize(
    "records", [(), (exactness(),), (exactness(), profit(ratios={1: 0.9})), (exactness(), profit(ratios={1: 1.01}))]
)
def test_without_a_gain_on_record_nothing_is_expected(records: tuple[Any, ...]) -> None:
    assert picked(*records).expected == ()
    assert auto(*records).expected == ()
    assert auto(*records, forced(Setting.ON, kind="ngram")).expected == ()


def test_a_record_without_windows_has_nothing_to_compare() -> None:
    silent = msgspec.structs.replace(point(1, 1.6), plain_window_ms=0.0)
    record = msgspec.structs.replace(profit(), evidence=ProfitEvidence(points=(silent, point(2, 1.3))))
    assert [each.active for each in auto(exactness(), record).expected] == [2]
