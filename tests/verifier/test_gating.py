"""Rules that change while requests run: what is drafted follows at once, and no reply does."""

import itertools
import json
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from deployments.messages.gates import SpeculationRule
from deployments.messages.generation import GenerateRequest, SpeculationSettings
from deployments.verifier.delivery import UnderWay
from deployments.verifier.engine import Engine
from deployments.verifier.gating import say_speculation, ungated
from deployments.verifier.ladder import Ladder
from deployments.verifier.plan import StepPlan
from deployments.verifier.probe import ProbeReport
from deployments.verifier.window import Rung
from tests.verifier.recalling import expected, recalling_engine
from tests.verifier.serving import Reply, serve
from tests.verifier.test_engine import Guessing, assert_whole, request

SLOTS = 5
ALLOWED = SpeculationRule(
    kind="guessing",
    state="settled",
    gated=True,
    reason="passed",
    sentence="passed on this chip",
    k_by_active_slots=(3,) * SLOTS,
    revision=4,
)
# Speculation was measured to lose from four active slots on.
CROSSOVER = replace(ALLOWED, k_by_active_slots=(3, 3, 2, 0, 0), stop_above=3)
REFUSED = replace(
    ALLOWED, kind=None, state="unknown", gated=False, reason="not_gated", k_by_active_slots=(0,) * SLOTS, stop_above=0
)


class Gates:
    """A rule that tests change between windows."""

    def __init__(self, rule: SpeculationRule, /) -> None:
        self.rule = rule

    def engine(self) -> Engine:
        engine, _ = recalling_engine(
            Guessing(skill=1.0), slots=SLOTS, context=128, draft_k=3, rows=(8, 32), rules=lambda: self.rule
        )
        return engine


def stepped(engine: Engine, replies: dict[str, Reply], *, before: Callable[[int], None]) -> None:
    """Runs to the end; `before` is called with the number of each window."""
    number = 0
    while not engine.is_idle:
        before(number)
        for delivery in engine.step():
            replies.setdefault(delivery.request_id, Reply()).take(delivery)
        engine.scheduler.check_integrity()
        number += 1


def plan_of(engine: Engine) -> StepPlan:
    assert isinstance(engine._under_way, UnderWay)
    return engine._under_way.plan


def drafts_of(reply: Reply) -> int:
    return reply.statistics.draft_n


@pytest.mark.parametrize("reason", ["not_applicable", "not_gated", "inexact", "not_faster", "disabled_by_operator"])
def test_where_nothing_may_run_every_window_says_why(reason: str) -> None:
    engine = Gates(replace(REFUSED, reason=reason)).engine()
    reply = serve(engine, [request(0, tokens=6)])["r0"]
    assert_whole(reply, of=request(0, tokens=6))
    assert (reply.statistics.declined, drafts_of(reply)) == ({reason: 5}, 0)


def test_what_a_client_says_comes_first() -> None:
    one = replace(request(0, tokens=6), speculation=SpeculationSettings(enabled=False))
    for rule in (REFUSED, CROSSOVER):
        assert serve(Gates(rule).engine(), [one])["r0"].statistics.declined == {"disabled_by_request": 5}


def test_a_drafter_that_may_not_run_is_not_told_of_requests() -> None:
    drafts = Guessing()
    engine, _ = recalling_engine(drafts, rules=lambda: REFUSED)
    serve(engine, [request(0)])
    assert drafts.begun == []


@pytest.mark.parametrize("depth", [3, 2, 1])
def test_no_request_gets_more_drafts_than_the_rule_has_for_so_many_slots(depth: int) -> None:
    engine = Gates(replace(ALLOWED, k_by_active_slots=(depth,) * SLOTS)).engine()
    rounds = serve(engine, [request(0, tokens=30)])["r0"].statistics.rounds
    assert len(rounds) == depth + 1


def test_a_change_counts_from_the_next_window_of_a_running_request() -> None:
    """Off in the middle of a reply, and on again later; the reply is what it would have been."""
    gates, one = Gates(ALLOWED), request(0, tokens=50)
    engine, replies, drafted = gates.engine(), {"r0": Reply()}, list[int]()
    engine.submit(one)

    def change(number: int) -> None:
        gates.rule = REFUSED if 5 <= number < 12 else ALLOWED
        drafted.append(drafts_of(replies["r0"]))

    stepped(engine, replies, before=change)
    assert_whole(replies["r0"], of=one)
    # What is said of a window comes with the step after it.
    assert drafted[5] > 0
    assert drafted[7] == drafted[12] < drafted[-1]
    # A window for each step that found the rule so.
    assert replies["r0"].statistics.declined["not_gated"] == 7


def test_speculation_stops_at_four_active_slots_and_resumes_at_three() -> None:
    """Requests come one by one and go again; each window is looked at with the number of slots it runs for."""
    asked = [request(number, tokens=tokens) for number, tokens in enumerate((60, 90, 90, 40, 12))]
    engine, replies = Gates(CROSSOVER).engine(), dict[str, Reply]()
    seen: Counter[tuple[int, bool]] = Counter()
    turns: list[bool] = []
    for number in itertools.count():
        if number % 4 == 0 and number // 4 < len(asked):
            engine.submit(asked[number // 4])
        for delivery in engine.step():
            replies.setdefault(delivery.request_id, Reply()).take(delivery)
        engine.scheduler.check_integrity()
        if engine.is_idle:
            break
        active, speculates = len(engine.scheduler.active), plan_of(engine).speculates
        seen[active, speculates] += 1
        turns.append(active >= 4)
    for one in asked:
        assert_whole(replies[one.request_id], of=one)
        assert replies[one.request_id].statistics.prompt_n + replies[one.request_id].statistics.cache_n == 5
    assert {active for active, speculates in seen if speculates} == {1, 2, 3}
    assert seen[4, False] > 0
    assert seen[5, False] > 0
    # Up to four, down again, and then on to the end.
    assert [among for among, _ in itertools.groupby(turns)] == [False, True, False]
    assert replies["r1"].statistics.declined["too_many_slots"] > 0


def test_below_the_fewest_slots_that_pay_it_is_not_the_load() -> None:
    engine = Gates(replace(ALLOWED, k_by_active_slots=(0, 3, 3, 3, 3))).engine()
    assert serve(engine, [request(0, tokens=6)])["r0"].statistics.declined == {"not_faster": 5}


def test_rules_that_change_in_every_window_change_no_reply() -> None:
    gates = Gates(ALLOWED)
    rules = (ALLOWED, REFUSED, CROSSOVER, replace(ALLOWED, k_by_active_slots=(1,) * SLOTS))
    asked: list[GenerateRequest] = [request(number, tokens=40) for number in range(9)]
    engine, replies = gates.engine(), dict[str, Reply]()
    for one in asked:
        engine.submit(one)

    def change(number: int) -> None:
        gates.rule = rules[number % len(rules)]

    stepped(engine, replies, before=change)
    assert {one.request_id: replies[one.request_id].tokens for one in asked} == {
        one.request_id: expected(one).tokens for one in asked
    }


def test_without_gates_there_is_no_limit_but_the_settings() -> None:
    rule = ungated(slots=2, draft_k=7)()
    assert [rule.k_for(active) for active in range(4)] == [0, 7, 7, 0]
    assert (rule.gated, rule.state) == (False, "forced")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ALLOWED, "speculation: passed on this chip"),
        (replace(ALLOWED, gated=False), "speculation: not gated on this chip"),
        (REFUSED, "speculation: off"),
    ],
)
def test_the_start_up_line_says_what_speculates(
    capsys: pytest.CaptureFixture[str], rule: SpeculationRule, message: str
) -> None:
    rung = Rung(rows=8, tiles=8)
    report = ProbeReport(ladder=Ladder(rungs=(rung,), emits=(8,)), refused={rung: "differs"}, rows=0)
    say_speculation(rule, draft_k=3, report=report)
    is_used = rule.kind is not None
    assert json.loads(capsys.readouterr().err) == {
        "event": "speculation",
        "used": is_used,
        "method": rule.kind,
        "draft_k": 3 if is_used else 0,
        "gated": rule.gated,
        "state": rule.state,
        "reason": rule.reason,
        "sentence": rule.sentence,
        "message": message,
        "stop_above": None if is_used else 0,
        "revision": 4,
        "rungs": 1,
        "refused_rungs": 1,
    }
