"""The gates in force, and the counts beside them, with a clock of the test's own."""

import pytest

from serve_app.gating.last_known import LastKnown
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import Change, StoreState
from tests.serve_app.gating.benches import Heard
from tests.serve_app.gating.making import exactness, profit

ONE = Snapshot.of([exactness()], revision=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_out_of_reach_is_summed() -> None:
    clock = Clock()
    known = LastKnown("here", now=clock)
    for away in (3.0, 4.0):
        known.find_unreachable("gone")
        clock.now += away / 2
        known.find_unreachable("still gone")
        clock.now += away / 2
        known.accept(ONE)
        clock.now += 10
    assert known.status().unreachable_s == 7.0
    known.find_unreachable("gone")
    clock.now += 5
    status = known.status()
    assert (status.unreachable, status.unreachable_s, status.state) == (3, 12.0, StoreState.UNREACHABLE)


def test_what_is_known_is_told_to_who_comes_late() -> None:
    known, heard = LastKnown("here"), Heard()
    known.accept(ONE)
    known.watch(heard)
    known.accept(ONE)
    assert [change.new for _, change in heard.changes] == [ONE]


def test_a_new_revision_alone_is_a_change() -> None:
    known, heard = LastKnown("here"), Heard()
    known.watch(heard)
    known.accept(ONE)
    known.accept(Snapshot.of(ONE.records, revision=2))
    assert heard.last == Change(old=ONE, new=Snapshot.of(ONE.records, revision=2), changes=())


def test_no_lock_is_held_while_others_are_told() -> None:
    """Whoever is told may be waiting for a thread that asks for the counts."""
    from threading import Thread

    known = LastKnown("here")
    asked: list[int] = []

    def ask_in_another_thread(_: Change) -> None:
        other = Thread(target=lambda: asked.append(known.status().revision))
        other.start()
        other.join(10)

    known.watch(ask_in_another_thread)
    known.accept(ONE)
    assert asked == [1]


def test_each_trouble_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    known = LastKnown("here")
    known.watch(Heard())
    known.accept(ONE)
    for _ in range(3):
        known.find_unreadable("line 1", content=b"x")
    known.find_unreadable("line 1", content=b"y")
    for _ in range(3):
        known.find_unreachable("gone")
    for _ in range(3):
        known.find_nothing()
    known.accept(Snapshot.of([profit()], revision=2))
    status = known.status()
    assert (status.parse_errors, status.unreachable, status.missing) == (2, 1, 1)
    assert [record.levelname for record in caplog.records].count("WARNING") == 4


def test_trouble_is_said_to_who_watches(caplog: pytest.LogCaptureFixture) -> None:
    """Others are told by whoever asked the status for them, and not twice."""
    known = LastKnown("here")
    known.find_unreachable("gone")
    assert not caplog.records
    known.watch(Heard())
    known.find_unreachable("gone")
    assert [record.getMessage() for record in caplog.records] == ["gates in here are unreachable: gone"]


def test_a_store_that_never_held_anything_is_empty_and_not_missing() -> None:
    known = LastKnown("here")
    known.find_nothing()
    known.find_unreachable("gone")
    known.find_nothing()
    assert (known.status().state, known.status().missing) == (StoreState.EMPTY, 0)
