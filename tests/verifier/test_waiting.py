"""Who comes next: those that were preempted, then by arrival and priority."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.messages.generation import GenerateRequest
from deployments.verifier.slots import Slot
from deployments.verifier.waiting import WaitingLine

STEP = 10.0


def slot(name: str, *, at: float = 0.0, priority: int = 0, preemptions: int = 0, until: float | None = None) -> Slot:
    request = GenerateRequest(request_id=name, prompt_ids=(1,), max_tokens=1, priority=priority)
    return Slot(
        index=-1,
        request=request,
        tokens=[1],
        pages=(),
        admitted_at=at,
        seniority=(at + priority * STEP, 0),
        expires_at=until,
        preemptions=preemptions,
    )


def line(*slots: Slot) -> WaitingLine:
    made = WaitingLine()
    for one in slots:
        made.add(one)
    return made


def names(waiting: WaitingLine) -> list[str]:
    return [one.request.request_id for one in waiting]


def test_who_came_first_comes_first() -> None:
    waiting = line(slot("b", at=2.0), slot("a", at=1.0), slot("c", at=3.0))

    assert names(waiting) == ["a", "b", "c"]
    assert waiting.first() is waiting.take_first()
    assert (names(waiting), len(waiting)) == (["b", "c"], 2)


def test_a_lower_priority_is_earlier_until_the_others_have_waited() -> None:
    waiting = line(slot("late", at=25.0, priority=-1), slot("plain", at=10.0), slot("soon", at=15.0, priority=-1))

    assert names(waiting) == ["soon", "plain", "late"]


def test_who_was_preempted_comes_before_all_others() -> None:
    waiting = line(slot("urgent", priority=-100), slot("paused", at=50.0, preemptions=1), slot("older", preemptions=3))

    assert names(waiting) == ["older", "paused", "urgent"]


def test_whoever_waits_can_be_forgotten_once() -> None:
    waiting = line(slot("a"), slot("b"))

    assert waiting.remove("b")
    assert not waiting.remove("b")
    assert names(waiting) == ["a"]
    waiting.clear()
    assert not waiting


def test_deadlines_pass_for_those_alone_that_have_one_and_never_ran() -> None:
    waiting = line(slot("a", until=5.0), slot("b"), slot("c", until=6.0), slot("d", until=1.0, preemptions=1))

    assert [one.request.request_id for one in waiting.take_expired(now=5.0)] == ["a"]
    assert names(waiting) == ["d", "b", "c"]
    assert waiting.take_expired(now=5.0) == ()


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 1000), st.integers(-100, 100)), min_size=1, max_size=30),
    priority=st.integers(-100, 100),
)
def test_nobody_waits_behind_those_who_come_much_later(arrivals: list[tuple[int, int]], priority: int) -> None:
    """A request is overtaken only by what arrives before its own time plus its handicap."""
    waiting = line(*(slot(str(number), at=float(at), priority=step) for number, (at, step) in enumerate(arrivals)))
    waiting.add(slot("mine", at=0.0, priority=priority))

    ahead = names(waiting)[: names(waiting).index("mine")]
    for name in ahead:
        at, step = arrivals[int(name)]
        assert at <= (priority - step) * STEP
