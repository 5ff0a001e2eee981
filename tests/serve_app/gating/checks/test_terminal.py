"""Progress, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from serve_app.gating.checks.terminal import TerminalSteps


def test_without_a_terminal_each_part_is_a_line() -> None:
    out = io.StringIO()
    with TerminalSteps(console=Console(file=out, width=100)) as steps:
        steps.begin("first [1]", total=3)
        steps.advance()
        steps.begin("second", total=2)
        steps.say("something")
    lines = [line.split(" s  ")[1] for line in out.getvalue().splitlines()]
    assert lines == ["first [1]", "second", "something"]


def test_on_a_terminal_a_part_that_ends_early_is_full() -> None:
    out = io.StringIO()
    with TerminalSteps(console=Console(file=out, width=100, force_terminal=True)) as steps:
        steps.begin("first", total=30)
        steps.advance(2)
        steps.begin("second", total=5)
        steps.advance(5)
    assert "2/2" in out.getvalue()
    assert "5/5" in out.getvalue()


def test_a_part_that_is_broken_off_is_not_full() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        break_off(TerminalSteps(console=Console(file=out, width=100, force_terminal=True)))
    assert "0/30" in out.getvalue()
    assert "30/30" not in out.getvalue()


def break_off(steps: TerminalSteps) -> None:
    with steps:
        steps.begin("first", total=30)
        raise KeyboardInterrupt
