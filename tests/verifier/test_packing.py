"""The arrays of a window, field by field, for plans that cross pages and tiles; and that padding touches nothing."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.recurrence import Recurrence
from deployments.lm.sampling.blocks import NO_TOKEN
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.packing import pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.slots import Slot
from deployments.verifier.states import Segment, StateRoom
from deployments.verifier.window import TILE_FIELDS, Rung

PAGE, SLOT_PAGES = 4, 6


def span(
    number: int, *, start: int, tokens: tuple[int, ...], emits: int, pages: tuple[int, ...], **sampling: float
) -> Span:
    request = GenerateRequest(
        request_id=str(number),
        prompt_ids=(1,),
        max_tokens=1,
        choice=number,
        sampling=SamplingSettings(
            temperature=sampling.get("temperature", 1.0),
            top_k=int(sampling.get("top_k", 0)),
            top_p=sampling.get("top_p", 1.0),
            min_p=sampling.get("min_p", 0.0),
            seed=int(sampling.get("seed", 0)),
        ),
    )
    slot = Slot(index=number, request=request, tokens=[0] * start, pages=pages, admitted_at=0.0)
    return Span(slot=slot, start=start, tokens=tokens, emits=emits)


def test_a_window_is_laid_out_as_documented() -> None:
    drafting = span(
        1, start=6, tokens=(10, 11, 12), emits=3, pages=(9, 3, 7), top_k=5, top_p=0.5, min_p=0.25, seed=2**32 - 1
    )
    prompt = span(2, start=0, tokens=(20, 21, 22, 23, 24), emits=1, pages=(5, 8), temperature=0.0)
    going_on = span(3, start=4, tokens=(30,), emits=0, pages=(1, 2))
    window = pack(
        StepPlan(spans=(drafting, prompt, going_on)),
        rung=Rung(rows=12, tiles=6),
        emits=8,
        page_size=PAGE,
        slot_pages=SLOT_PAGES,
    )

    scratch = [0, 0, SCRATCH_PAGE, 0, 0]
    assert window.rows.tolist() == [
        [10, 6, 3, 2, 0],
        [11, 7, 3, 3, 1],
        [12, 8, 7, 0, 2],
        [20, 0, 5, 0, 4],
        [21, 1, 5, 1, 5],
        [22, 2, 5, 2, 6],
        [23, 3, 5, 3, 7],
        [24, 4, 8, 0, 8],
        [30, 4, 2, 0, 12],
        scratch,
        scratch,
        scratch,
    ]
    empty = [0, 0, 0, 0, -1, -1, -1, -1, *[SCRATCH_PAGE] * SLOT_PAGES]
    assert window.tiles.tolist() == [
        [0, 1, 2, 0, 6, 7, 8, -1, 9, 3, 7, 0, 0, 0],
        [3, 4, 5, 6, 0, 1, 2, 3, 5, 8, 0, 0, 0, 0],
        [7, 0, 0, 0, 4, -1, -1, -1, 5, 8, 0, 0, 0, 0],
        [8, 0, 0, 0, 4, -1, -1, -1, 1, 2, 0, 0, 0, 0],
        empty,
        empty,
    ]
    assert window.emit_ints.tolist() == [
        [0, 10, 1, 5, -1, 1, 7],
        [1, 11, 0, 5, -1, 1, 8],
        [2, 12, 0, 5, -1, 1, 9],
        [7, 24, 1, 0, 0, 2, 5],
        *[[0, 0, 1, 0, 0, 0, 0]] * 4,
    ]
    assert window.emit_floats.tolist() == [*[[1.0, 0.5, 0.25]] * 3, [0.0, 1.0, 0.0], *[[0.0, 1.0, 0.0]] * 4]


def test_a_window_that_draws_nothing_has_no_draw() -> None:
    plan = StepPlan(spans=(span(0, start=0, tokens=(1, 2), emits=0, pages=(1,)),))
    window = pack(plan, rung=Rung(rows=8, tiles=2), emits=0, page_size=PAGE, slot_pages=SLOT_PAGES)

    assert len(window.emit_ints) == len(window.emit_floats) == 0


def test_extras_are_packed_for_those_who_ask_and_only_then() -> None:
    """A chain of three rows beside plain ones: its penalties, where it is, and up to which row its end is out."""
    plain = span(1, start=3, tokens=(10, 11), emits=2, pages=(9, 3))
    request = replace(
        plain.slot.request,
        prompt_ids=(5, 6),
        min_tokens=2,
        end_ids=(7,),
        sampling=SamplingSettings(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25),
    )
    slot = Slot(index=2, request=request, tokens=[5, 6, 8], pages=(1, 2), admitted_at=0.0)
    asking = Span(slot=slot, start=2, tokens=(8, 9, 8), emits=3)
    rung = Rung(rows=8, tiles=4)

    bare = pack(StepPlan(spans=(plain,)), rung=rung, emits=8, page_size=PAGE, slot_pages=SLOT_PAGES)
    window = pack(StepPlan(spans=(plain, asking, plain)), rung=rung, emits=8, page_size=PAGE, slot_pages=SLOT_PAGES)
    assert bare.extras is None
    assert window.extras is not None
    nothing, changed = [1.0, 0.0, 0.0, 0.0], [1.5, 0.5, 0.25]
    rows = [[*changed, 1.0], [*changed, 0.0], [*changed, 0.0]]
    assert window.extras.rows.tolist() == [nothing, nothing, *rows, nothing, nothing, nothing]
    assert window.extras.blocks[:, :2].tolist() == [[2, 3]]
    assert window.extras.blocks[0, 2 : 2 + 6].tolist() == [7, 5, 6, 8, 9, NO_TOKEN]
    assert not window.extras.wants_logprobs


def test_logprobs_alone_need_no_history() -> None:
    asking = span(1, start=3, tokens=(10,), emits=1, pages=(9,))
    asking.slot.request = replace(asking.slot.request, logprobs=0)
    window = pack(StepPlan(spans=(asking,)), rung=Rung(rows=8, tiles=2), emits=8, page_size=PAGE, slot_pages=SLOT_PAGES)

    assert window.extras is not None
    assert window.extras.wants_logprobs
    assert len(window.extras.blocks) == 0
    going_on = Span(slot=asking.slot, start=0, tokens=(1, 2), emits=0)
    later = pack(
        StepPlan(spans=(going_on,)), rung=Rung(rows=8, tiles=2), emits=0, page_size=PAGE, slot_pages=SLOT_PAGES
    )
    assert later.extras is None


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_row_is_found_from_its_tile_and_writes_to_a_place_of_its_own(seed: int) -> None:
    random = Random(seed)
    free = list(range(1, 60))
    random.shuffle(free)
    spans = []
    for number in range(random.randint(1, 6)):
        count, start = random.randint(1, 9), random.randint(0, 15)
        pages = tuple(free.pop() for _ in range(random.randint(-(-(start + count) // PAGE), SLOT_PAGES)))
        emits = random.choice([0, 1, count])
        spans.append(span(number, start=start, tokens=tuple(range(count)), emits=emits, pages=pages))
    plan = StepPlan(spans=tuple(spans))
    rung = Rung(rows=plan.rows + random.randint(0, 5), tiles=plan.tiles + random.randint(0, 5))
    window = pack(plan, rung=rung, emits=plan.emits + 3, page_size=PAGE, slot_pages=SLOT_PAGES)

    lanes = window.tiles[:, :TILE_ROWS].ravel()
    positions = window.tiles[:, TILE_ROWS:TILE_FIELDS].ravel()
    tables = window.tiles[:, TILE_FIELDS:]
    for row in range(plan.rows):
        _, position, page, offset, lane = window.rows[row].tolist()
        assert lanes[lane] == row
        assert positions[lane] == position
        assert tables[lane // TILE_ROWS, position // PAGE] == page != SCRATCH_PAGE
        assert offset == position % PAGE
    written = [tuple(place) for place in window.rows[: plan.rows, 2:4].tolist()]
    assert len(set(written)) == plan.rows
    assert np.all(window.rows[plan.rows :, 2] == SCRATCH_PAGE)
    assert np.sum(positions >= 0) == plan.rows
    assert np.all(positions.reshape(-1, TILE_ROWS)[plan.tiles :] == -1)
    assert np.all(window.emit_ints[plan.emits :, 2] == 1)
    assert np.all(window.emit_floats[plan.emits :, 0] == 0)


def test_segments_are_laid_out_in_the_order_of_the_rows() -> None:
    """Two accepted drafts of slot 1 run again, then its row, then three drafts; and a prompt leaves a state behind."""
    room = StateRoom(slots=3, drafts=3, kept=2)
    drafting = replace_span(
        span(1, start=6, tokens=(10, 11, 12, 13), emits=4, pages=(9, 3, 7)),
        Segment(count=2, read=4, write=4, replayed=3),
        Segment(count=1, read=4, write=4),
        Segment(count=3, read=4, write=0, kept=3),
    )
    prompt = replace_span(
        span(2, start=0, tokens=(20, 21, 22), emits=0, pages=(5,)),
        Segment(count=2, read=room.empty, write=1),
        Segment(count=1, read=1, write=2),
    )
    plan = StepPlan(spans=(drafting, prompt))
    window = pack(plan, rung=Rung(rows=8, tiles=4), emits=8, page_size=PAGE, slot_pages=SLOT_PAGES, room=room)

    assert window.recurrence is not None
    recurrence = Recurrence.unpacked(window.recurrence, rows=8)
    # Ten pending places, of which the last is for rows that stay; so the window's rows are numbered from ten.
    assert np.asarray(recurrence.segments)[:6].tolist() == [
        [3, 2, 4, 4],
        [10, 1, 4, 4],
        [11, 3, 4, 0],
        [14, 2, 6, 1],
        [16, 1, 1, 2],
        [0, 0, 0, 0],
    ]
    assert np.asarray(recurrence.segments).shape == (room.segments, 4)
    assert np.asarray(recurrence.places).tolist() == [9, 3, 4, 5, 9, 9, 9, 9]


def test_a_window_of_a_network_without_states_carries_none() -> None:
    plan = StepPlan(spans=(span(1, start=0, tokens=(1,), emits=1, pages=(1,)),))
    window = pack(plan, rung=Rung(rows=8, tiles=2), emits=8, page_size=PAGE, slot_pages=SLOT_PAGES)

    assert window.recurrence is None


def replace_span(one: Span, *segments: Segment) -> Span:
    return Span(slot=one.slot, start=one.start, tokens=one.tokens, emits=one.emits, segments=segments)
