"""What goes on while devices wait for each other: copies that have begun, and no others."""

import pytest

from serve_app.compiling.schedule import Step, exposed

COPY, OTHER = Step(moved=100, begins="copy"), Step(moved=60, begins="other")
EXCHANGE = Step(wire=5.0)


def alone(*steps: Step) -> float:
    """With ten bytes a second to memory and one to other devices: an exchange takes five, a copy ten."""
    return exposed(steps, hbm=10.0, ring=1.0)


def test_with_nothing_under_way_all_of_it_counts() -> None:
    assert alone(EXCHANGE, COPY) == 5.0
    assert alone(Step(moved=100), EXCHANGE) == 5.0
    assert alone() == alone(COPY) == 0.0


def test_a_copy_that_has_begun_goes_on() -> None:
    assert alone(COPY, EXCHANGE) == 0.0
    assert alone(COPY, EXCHANGE, EXCHANGE) == 0.0
    assert alone(COPY, EXCHANGE, EXCHANGE, EXCHANGE) == 5.0
    assert alone(OTHER, EXCHANGE, EXCHANGE) == pytest.approx(4.0)


def test_what_was_waited_for_is_there_with_all_before_it() -> None:
    assert alone(COPY, Step(awaits="copy"), EXCHANGE) == 5.0
    assert alone(COPY, OTHER, Step(awaits="copy"), EXCHANGE) == 0.0
    assert alone(COPY, OTHER, Step(awaits="other"), EXCHANGE) == 5.0
    # Nobody waits for one that arrived during an exchange.
    assert alone(OTHER, EXCHANGE, EXCHANGE, COPY, Step(awaits="other"), EXCHANGE) == pytest.approx(4.0)


def test_half_of_the_rate_is_left_beside_an_instruction_that_moves_as_much() -> None:
    assert alone(COPY, Step(moved=70), EXCHANGE) == pytest.approx(2.0)
    assert alone(COPY, Step(moved=500), EXCHANGE) == 5.0
