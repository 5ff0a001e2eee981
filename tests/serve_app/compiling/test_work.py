"""What bytes are for, and how a window's load makes loops turn."""

from fractions import Fraction

import pytest

from serve_app.compiling.hlo import parse_module
from serve_app.compiling.trips import Times
from serve_app.compiling.work import Load, weights_read, work_of
from tests.serve_app.compiling import texts

PLAIN = Load(slots=8, rows=1, position=1024)
DRAFTED = Load(slots=8, rows=8, position=1024)
ROWS = 8 * 128 * 4
QUERIES, CACHE = "bf16[16,8,16,128]{3,2,1,0:T(8,128)(2,1)}", "bf16[600,2,8,64,128]{4,3,2,1,0:T(8,128)(2,1)}"
KERNEL = f"""{texts.HEADER}

ENTRY %main (queries: bf16[16,8,16,128], cache: bf16[600,2,8,64,128]) -> f32[16,8,16,128] {{
  %queries = {QUERIES} parameter(0)
  %cache = {CACHE} parameter(1)
  ROOT %seen = f32[16,8,16,128]{{3,2,1,0:T(8,128)}} custom-call(%queries, %queries, %cache), \
custom_call_target="tpu_custom_call", metadata={{op_name="jit(f)/outrider_attend"}}, \
frontend_attributes={{kernel_name="outrider_attend"}}
}}
"""
STATES = """{header}

ENTRY %main (matrices: f32[10,48,128,128], history: f32[10,3,10240], held: f32[57,10240], kept: f32[57,2,48], \
rows: f32[64,10240], gates: f32[64,2,48], kernel: f32[4,10240], each: f32[1,48]) -> f32[64,48,128] {{
  %matrices = f32[10,48,128,128]{{3,2,1,0:T(8,128)}} parameter(0)
  %history = f32[10,3,10240]{{2,1,0:T(4,128)}} parameter(1)
  %held = f32[57,10240]{{1,0:T(8,128){memory}}} parameter(2)
  %kept = f32[57,2,48]{{2,1,0:T(2,128){memory}}} parameter(3)
  %rows = f32[64,10240]{{1,0:T(8,128){memory}}} parameter(4)
  %gates = f32[64,2,48]{{2,1,0:T(2,128){memory}}} parameter(5)
  %kernel = f32[4,10240]{{1,0:T(4,128)}} parameter(6)
  %each = f32[1,48]{{1,0:T(1,128)}} parameter(7)
  %run = (f32[10,48,128,128]{{3,2,1,0:T(8,128)}}, f32[10,3,10240]{{2,1,0:T(4,128)}}, \
f32[64,48,128]{{2,1,0:T(8,128){memory}}}) custom-call(%matrices, %history, %held, %kept, %rows, %gates, %kernel, \
%each, %each), custom_call_target="tpu_custom_call", metadata={{op_name="jit(f)/outrider_delta"}}, \
frontend_attributes={{kernel_name="outrider_delta"}}
  ROOT %seen = f32[64,48,128]{{2,1,0:T(8,128){memory}}} get-tuple-element(%run), index=2
}}
"""


@pytest.mark.parametrize(
    ("load", "origin", "depth", "turns"),
    [
        (PLAIN, "deployments/lm/attention.py", 0, 4),
        (PLAIN, "deployments/lm/attention.py", 1, 16),
        (DRAFTED, "deployments/lm/attention.py", 0, 8),
        (PLAIN, "deployments/lm/recurrence.py", 0, 8),
        (PLAIN, "deployments/lm/recurrence.py", 1, 1),
        (PLAIN, "deployments/lm/recurrence.py", 2, 1),
        (DRAFTED, "deployments/lm/recurrence.py", 0, 8),
        (DRAFTED, "deployments/lm/recurrence.py", 1, 15),
        (DRAFTED, "deployments/lm/recurrence.py", 2, Fraction(1, 15)),
        (PLAIN, "deployments/lm/sampling/shaping.py", 0, 0),
        (PLAIN, "deployments/lm/experts.py", 0, 1),
    ],
)
def test_loops_turn_as_often_as_the_window_says(load: Load, origin: str, depth: int, turns: Times) -> None:
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


@pytest.mark.parametrize(
    ("rows", "tiles", "reads"),
    [(1, 8, 8), (4, 8, 8), (5, 16, 8), (8, 16, 8), (9, 24, 16), (16, 32, 16), (17, 40, 24)],
)
def test_tiles_of_a_slot_read_its_pages_in_pairs(rows: int, tiles: int, reads: int) -> None:
    load = Load(slots=8, rows=rows, position=1024)
    assert (load.tiles, load.reads) == (tiles, reads)


def test_the_kernel_reads_pages_once_for_both_tiles_of_a_slot() -> None:
    """Of 8 key heads of 128 in bf16, for 16 tiles: 16 pages of 256 KiB for each slot."""
    plain, drafted = (work_of(parse_module(KERNEL), load=load, page_size=64) for load in (PLAIN, DRAFTED))
    tiles = 16 * 8 * 16 * 128 * (2 * 2 + 4)
    assert plain.attention == drafted.attention == 8 * 16 * 256 * 1024 + tiles
    # Both tiles are worked on.
    assert 2 * plain.bf16 == drafted.bf16 == 2 * 16 * 1024 * 8 * 16 * 2 * 128
    assert (plain.moved, plain.states) == (0, 0)


def test_weights_are_those_that_are_read_whole() -> None:
    assert weights_read(parse_module(texts.PREFETCH)) == 256 * 128
    work = work_of(parse_module(texts.PREFETCH), load=PLAIN, page_size=64)
    assert work.moved == 256 * 128 + 8 * 256 * 4
    assert work.int8 == 2 * 8 * 256 * 128
    assert [one.name for one in work.excess] == ["fusion"]


def test_the_kernel_of_recurrent_layers_moves_each_slots_state_once() -> None:
    """Of a layer of Qwen3.8-27B; accepted drafts come from HBM, and the window's rows where they are there."""
    state, row, given = 48 * 65536 + 3 * 40960, 40960 + 2 * 48 * 4, 48 * 512
    for memory, factor in (("S(1)", 0), ("", 1)):
        text = STATES.format(header=texts.HEADER, memory=memory)
        plain, drafted = (work_of(parse_module(text), load=load, page_size=64) for load in (PLAIN, DRAFTED))
        assert plain.states == 16 * state + 4 * 40960 + factor * 8 * (row + given)
        assert drafted.states == 16 * state + 4 * 40960 + factor * (56 * row + 64 * (row + given))
        assert plain.moved == plain.attention == 0
        assert not plain.guessed
    # More rows are not run again than there is room for.
    few = STATES.format(header=texts.HEADER, memory="").replace("57,", "25,")
    again = work_of(parse_module(few), load=DRAFTED, page_size=64).states
    assert again == 16 * state + 4 * 40960 + 24 * row + 64 * (row + given)


def test_copies_are_steps_that_begin_and_are_waited_for() -> None:
    steps = work_of(parse_module(texts.PREFETCH), load=PLAIN, page_size=64).steps
    assert [(one.begins, one.awaits, one.moved) for one in steps] == [
        # Of the one that the last run began.
        ("", "copy-start", 0),
        ("copy-start.1", "", 256 * 128),
        ("", "", 8 * 256 * 4),
        ("", "copy-start.1", 0),
    ]


def test_exchanges_are_steps_and_what_kernels_move_as_well() -> None:
    exchanges = work_of(parse_module(texts.EXCHANGES), load=PLAIN, page_size=64)
    assert sum(one.wire for one in exchanges.steps) == exchanges.wire > 0
    for text in (KERNEL, STATES.format(header=texts.HEADER, memory=""), texts.LOOPS):
        work = work_of(parse_module(text), load=DRAFTED, page_size=64)
        assert sum(one.moved for one in work.steps) == work.hbm > 0
