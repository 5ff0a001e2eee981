"""What bytes are for, and how a window's load makes loops turn."""

import pytest

from serve_app.compiling.hlo import parse_module
from serve_app.compiling.work import Load, weights_read, work_of
from tests.serve_app.compiling import texts

PLAIN = Load(slots=8, rows=1, position=1024)
DRAFTED = Load(slots=8, rows=8, position=1024)
ROWS = 8 * 128 * 4


@pytest.mark.parametrize(
    ("load", "origin", "depth", "turns"),
    [
        (PLAIN, "deployments/lm/attention.py", 0, 4),
        (PLAIN, "deployments/lm/attention.py", 1, 16),
        (DRAFTED, "deployments/lm/attention.py", 0, 8),
        (PLAIN, "deployments/lm/recurrence.py", 0, 8),
        (PLAIN, "deployments/lm/recurrence.py", 1, 1),
        (DRAFTED, "deployments/lm/recurrence.py", 0, 24),
        (DRAFTED, "deployments/lm/recurrence.py", 1, 5),
        (PLAIN, "deployments/lm/sampling/shaping.py", 0, 0),
        (PLAIN, "deployments/lm/experts.py", 0, 1),
    ],
)
def test_loops_turn_as_often_as_the_window_says(load: Load, origin: str, depth: int, turns: int) -> None:
    assert load.turns((f"/src/{origin}",), depth=depth, page_size=64) == turns


def test_a_cache_that_is_written_is_attention() -> None:
    work = work_of(parse_module(texts.SCATTER), load=PLAIN, page_size=64)
    assert (work.moved, work.attention, work.states) == (0, 3 * ROWS, 0)
    assert work.hbm == 3 * ROWS


def test_what_a_recurrence_moves_is_states_only_where_the_instruction_is_its_own() -> None:
    work = work_of(parse_module(texts.LOOPS), load=PLAIN, page_size=64)
    # The text's instructions in the loop have no frames: it is the loop that is known.
    assert work.moved == 8 * 24 * 2 * 256 * 128 * 4
    assert not work.guessed


def test_loops_of_nobody_are_named() -> None:
    text = texts.LOOPS.replace("lm/recurrence.py", "lm/experts.py")
    assert work_of(parse_module(text), load=PLAIN, page_size=64).guessed == ("/src/deployments/lm/experts.py",)


def test_weights_are_those_that_are_read_whole() -> None:
    assert weights_read(parse_module(texts.PREFETCH)) == 256 * 128
    work = work_of(parse_module(texts.PREFETCH), load=PLAIN, page_size=64)
    assert work.moved == 256 * 128 + 8 * 256 * 4
    assert work.int8 == 2 * 8 * 256 * 128
    assert [one.name for one in work.excess] == ["fusion"]
