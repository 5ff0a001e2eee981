"""From a step plan to the arrays a window takes. Knows layouts, not devices."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.recurrence import SEGMENT_FIELDS
from deployments.lm.sampling.shaping import BLOCK_FIELDS
from deployments.lm.sampling.shaping import ROW_FIELDS as SHAPING_FIELDS
from deployments.verifier.history import is_shaped
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.states import StateRoom
from deployments.verifier.window import EMIT_FLOATS, EMIT_INTS, ROW_FIELDS, TILE_FIELDS, Rung


@dataclass(frozen=True, kw_only=True)
class PackedExtras:
    """What some rows ask for beyond a plain draw; as `window.EmitExtras`, with the blocks that are used alone."""

    rows: Float32[np.ndarray, "emits shaping_fields"]
    blocks: Int32[np.ndarray, "used block_fields"]
    wants_logprobs: bool


@dataclass(frozen=True, kw_only=True)
class PackedWindow:
    """One window's arrays, on the host. Field by field as in `window.BodyInput` and `window.EmitInput`.

    Attributes:
        recurrence: `None` in networks without recurrent layers.
        extras: `None` when no row asks for any, and nothing need be transferred.
    """

    rows: Int32[np.ndarray, "rows row_fields"]
    tiles: Int32[np.ndarray, "tiles tile_fields"]
    emit_ints: Int32[np.ndarray, "emits ints"]
    emit_floats: Float32[np.ndarray, "emits floats"]
    extras: PackedExtras | None = None
    recurrence: Int32[np.ndarray, " numbers"] | None = None


def pack(
    plan: StepPlan, *, rung: Rung, emits: int, page_size: int, slot_pages: int, room: StateRoom | None = None
) -> PackedWindow:
    """Lays `plan` out for a window of size `rung` that draws for `emits` rows; the rest is padding.

    Args:
        room: of the states of recurrent layers; `None` where there are none.
    """
    rows = np.zeros((rung.rows, ROW_FIELDS), np.int32)
    rows[:, 2] = SCRATCH_PAGE
    tiles = np.zeros((rung.tiles, TILE_FIELDS + slot_pages), np.int32)
    tiles[:, TILE_ROWS:TILE_FIELDS] = -1
    ints = np.zeros((emits, EMIT_INTS), np.int32)
    ints[:, 2] = 1
    floats = np.zeros((emits, EMIT_FLOATS), np.float32)
    floats[:, 1] = 1.0
    row = tile = drawn = 0
    for span in plan.spans:
        count = len(span.tokens)
        _pack_rows(span, rows=rows[row : row + count], first_lane=tile * TILE_ROWS, page_size=page_size)
        _pack_tiles(span, tiles=tiles[tile : tile + span.tiles], first_row=row)
        if span.emits:
            end = drawn + span.emits
            _pack_emits(span, ints=ints[drawn:end], floats=floats[drawn:end], first_row=row + count - span.emits)
            drawn = end
        row += count
        tile += span.tiles
    return PackedWindow(
        rows=rows,
        tiles=tiles,
        emit_ints=ints,
        emit_floats=floats,
        extras=_pack_extras(plan, emits=emits),
        recurrence=None if room is None else _pack_recurrence(plan, rows=rung.rows, room=room),
    )


def no_shaping(emits: int) -> Float32[np.ndarray, "emits shaping_fields"]:
    """The rows of `PackedExtras` that change nothing."""
    rows = np.zeros((emits, SHAPING_FIELDS), np.float32)
    rows[:, 0] = 1.0
    return rows


def _pack_recurrence(plan: StepPlan, *, rows: int, room: StateRoom) -> Int32[np.ndarray, " numbers"]:
    """As `Recurrence.unpacked` takes it."""
    segments = np.zeros((room.segments, SEGMENT_FIELDS), np.int32)
    places = np.full(rows, room.pending - 1, np.int32)
    row = number = 0
    for span in plan.spans:
        for segment in span.segments:
            first = room.pending + row if segment.replayed is None else segment.replayed
            segments[number] = (first, segment.count, segment.read, segment.write)
            if segment.kept is not None:
                places[row : row + segment.count] = segment.kept + np.arange(segment.count)
            row += segment.count if segment.replayed is None else 0
            number += 1
    return np.concatenate([segments.reshape(-1), places])


def _pack_extras(plan: StepPlan, *, emits: int) -> PackedExtras | None:
    drawing = [span for span in plan.spans if span.emits]
    wants_logprobs = any(span.slot.request.logprobs is not None for span in drawing)
    if not wants_logprobs and not any(is_shaped(span.slot.request) for span in drawing):
        return None
    rows = no_shaping(emits)
    blocks = [np.zeros((0, BLOCK_FIELDS), np.int32)]
    first = 0
    for span in drawing:
        if is_shaped(span.slot.request):
            _pack_shaping(span, rows=rows[first : first + span.emits])
            own = span.slot.history.blocks(
                span.slot.request, tokens=span.slot.tokens, drafts=span.tokens[len(span.tokens) - span.drafts :]
            )
            own[:, :2] = first, span.emits
            blocks.append(own)
        first += span.emits
    return PackedExtras(rows=rows, blocks=np.concatenate(blocks), wants_logprobs=wants_logprobs)


def _pack_shaping(span: Span, *, rows: Float32[np.ndarray, "count shaping_fields"]) -> None:
    request = span.slot.request
    sampling = request.sampling
    rows[:, :3] = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    rows[:, 3] = span.slot.generated + np.arange(span.emits) < request.min_tokens


def _pack_rows(span: Span, *, rows: Int32[np.ndarray, "count fields"], first_lane: int, page_size: int) -> None:
    positions = np.arange(span.start, span.start + len(span.tokens), dtype=np.int32)
    rows[:, 0] = span.tokens
    rows[:, 1] = positions
    rows[:, 2] = np.asarray(span.slot.pages, np.int32)[positions // page_size]
    rows[:, 3] = positions % page_size
    rows[:, 4] = first_lane + np.arange(len(span.tokens))


def _pack_tiles(span: Span, *, tiles: Int32[np.ndarray, "count fields"], first_row: int) -> None:
    count = len(span.tokens)
    lanes = np.zeros(len(tiles) * TILE_ROWS, np.int32)
    lanes[:count] = first_row + np.arange(count)
    positions = np.full(len(tiles) * TILE_ROWS, -1, np.int32)
    positions[:count] = span.start + np.arange(count)
    tiles[:, :TILE_ROWS] = lanes.reshape(-1, TILE_ROWS)
    tiles[:, TILE_ROWS:TILE_FIELDS] = positions.reshape(-1, TILE_ROWS)
    tiles[:, TILE_FIELDS : TILE_FIELDS + len(span.slot.pages)] = span.slot.pages


def _pack_emits(
    span: Span,
    *,
    ints: Int32[np.ndarray, "emits ints"],
    floats: Float32[np.ndarray, "emits floats"],
    first_row: int,
) -> None:
    request = span.slot.request
    settings = request.sampling
    ints[:, 0] = first_row + np.arange(span.emits)
    ints[:, 1] = span.tokens[-span.emits :]
    ints[:, 2] = np.arange(span.emits) == 0
    ints[:, 3] = settings.top_k
    ints[:, 4] = np.uint32(settings.seed & 0xFFFFFFFF).view(np.int32)
    ints[:, 5] = request.choice
    ints[:, 6] = span.start + len(span.tokens) - span.emits + 1 + np.arange(span.emits)
    floats[:] = (settings.temperature, settings.top_p, settings.min_p)
