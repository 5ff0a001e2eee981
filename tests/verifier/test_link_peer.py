"""When a late drafter is left alone, and for how long."""

import pytest

from deployments.verifier.link_peer import Punctuality


def run(record: Punctuality, marks: str) -> Punctuality:
    for mark in marks:
        record.late() if mark == "L" else record.on_time()
    return record


@pytest.mark.parametrize(
    ("marks", "tardy"),
    [
        ("LL", False),
        ("LLL", True),
        ("L.L.L.", False),
        ("LL.....L", False),
        ("L." * 4, True),
        ("L...." * 50, False),
        ("L..." * 50, True),
        ("L.." * 9, True),
        ("." * 1000 + "LL", False),
        ("." * 1000 + "LLL", True),
    ],
)
def test_three_late_rounds_in_a_row_or_too_many_among_the_punctual(marks: str, tardy: bool) -> None:
    assert run(Punctuality(late_limit=3), marks).is_tardy == tardy


def test_one_that_comes_back_is_on_probation() -> None:
    record = run(Punctuality(late_limit=3), "LLL")
    record.restored()
    assert not record.is_tardy
    assert run(record, "L").is_tardy
    record.restored()
    assert not run(record, "....L").is_tardy


def test_pauses_double_until_it_has_been_good_for_a_while() -> None:
    record = Punctuality(late_limit=3)
    assert [record.next_pause_s() for _ in range(5)] == [0.25, 0.5, 1.0, 2.0, 2.0]
    assert run(record, "." * 15 + "L").next_pause_s() == 2.0
    assert run(record, "." * 16).next_pause_s() == 0.25
