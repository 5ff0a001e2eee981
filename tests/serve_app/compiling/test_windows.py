"""Which programs a window takes, and what follows when one is missing."""

from typing import cast

import pytest

from deployments.verifier.ahead import CompiledProgram, FailedProgram, ProgramMemory
from deployments.verifier.blueprint import Sizes
from deployments.verifier.ladder import build_ladder
from serve_app.compiling.chips import slice_named
from serve_app.compiling.windows import Programs, Windows
from tests.serve_app.compiling import texts

MEMORY = ProgramMemory(arguments=0, outputs=0, temporaries=0, aliased=0, code=0)
PROGRAM = CompiledProgram(memory=MEMORY, flops=0.0, hlo_text=texts.PREFETCH, seconds=1.0)
SLOTS, DRAFTS = 8, 3
LADDER = build_ladder((8, 16, 32), slots=SLOTS, draft_k=DRAFTS)


class _Shape:
    page_size = 64


class _Sizes:
    """As much of `Sizes` as windows look at."""

    ladder = LADDER
    slots = SLOTS
    shape = _Shape()


def windows(programs: Programs) -> Windows:
    sizes = cast(Sizes, _Sizes())
    return Windows(programs, sizes=sizes, on=slice_named("v6e-1"), position=1024, draft_k=DRAFTS)


def everything() -> dict[object, CompiledProgram | FailedProgram]:
    return dict.fromkeys((*LADDER.rungs, *LADDER.emits), PROGRAM)


def test_each_rung_has_a_window_of_all_slots() -> None:
    found = windows(cast(Programs, everything()))
    every = [found.of_rung(rung) for rung in LADDER.rungs]
    assert [(one.load.slots, one.load.rows, one.emits) for one in every if one] == [(8, 1, 8), (8, 2, 16), (8, 4, 32)]


def test_a_stream_alone_takes_the_narrowest_rung() -> None:
    one = windows(cast(Programs, everything())).of(slots=1, drafts=DRAFTS)
    assert one is not None
    assert (one.rung.rows, one.emits) == (8, 8)


def test_speeds_are_plain_first_then_every_length_that_drafts_reach() -> None:
    found = windows(cast(Programs, everything())).speeds()
    assert [(one.tokens, one.drafts) for one in found] == [(1, 0), (1, 3), (2, 3), (3, 3), (4, 3)]
    assert found[3].one == pytest.approx(3 * found[1].one)
    assert found[0].all == pytest.approx(8 * found[0].one)


def test_what_needs_a_missing_program_is_left_out() -> None:
    programs = everything() | {LADDER.rungs[2]: FailedProgram(reason="no", seconds=1.0)}
    found = windows(cast(Programs, programs))
    assert found.of_rung(LADDER.rungs[2]) is None
    assert found.of_rung(LADDER.rungs[0]) is not None
    assert [one.drafts for one in found.speeds()] == [0]
