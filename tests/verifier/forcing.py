"""Teacher forcing through the real window programs: tokens that are known go in, hidden states and logits come out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Array

from deployments.lm.cache.layout import CacheShape
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest
from deployments.verifier.blueprint import Blueprint, Sizes
from deployments.verifier.ladder import Ladder, build_rungs
from deployments.verifier.packing import pack
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Programs
from deployments.verifier.slots import Slot
from deployments.verifier.states import StateRoom, States


def network(path: str, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Decoder:
    """With native kernels where they are asked for and can be had."""
    chosen, _ = choose_kernels(kernels, cache=Path.home() / ".cache" / "outrider" / "kernels")
    return load_network(open_checkpoint(path), precision=precision, kernels=chosen)


def programs_for(model: Decoder, *, precision: Precision, rows: int, context: int, page_size: int) -> Programs:
    """One rung of `rows` rows and one slot, and no draws."""
    slot_pages = -(-context // page_size)
    room = StateRoom(slots=1, drafts=0, kept=0) if model.config.is_recurrent else None
    shape = CacheShape(
        layout=model.config.layout,
        pages=slot_pages + 1,
        page_size=page_size,
        states=0 if room is None else room.states,
        pending=0 if room is None else room.pending,
    )
    sizes = Sizes(
        ladder=Ladder(rungs=build_rungs((rows,), slots=1), emits=()),
        shape=shape,
        cache_dtype=precision.cache_dtype,
        slots=1,
        slot_pages=slot_pages,
        longest=1,
        room=room,
    )
    return Programs(Blueprint(model, sizes=sizes), progress=lambda text: None)


def forced(programs: Programs, tokens: Sequence[int], /) -> Iterator[tuple[int, int, Array]]:
    """Per window: the position of its first token, how many there are, and the hidden states; in order."""
    (rung,) = programs.ladder.rungs
    pages = tuple(range(1, programs.slot_pages + 1))
    request = GenerateRequest(request_id="forced", prompt_ids=tuple(tokens), max_tokens=1)
    slot = Slot(index=0, request=request, tokens=list(tokens), pages=pages, admitted_at=0.0)
    states = None if programs.room is None else States(programs.room, page_size=programs.shape.page_size)
    if states is not None:
        states.enter(slot, key=None)
    for start in range(0, len(tokens), rung.rows):
        chunk = tuple(tokens[start : start + rung.rows])
        segments = () if states is None else states.segments(slot, rows=len(chunk), drafts=0)
        plan = StepPlan(spans=(Span(slot=slot, start=start, tokens=chunk, emits=0, segments=segments),))
        window = pack(
            plan,
            rung=rung,
            emits=0,
            page_size=programs.shape.page_size,
            slot_pages=programs.slot_pages,
            room=programs.room,
        )
        slot.cached += len(chunk)
        yield start, len(chunk), programs.run_body(window)


def forced_logits(programs: Programs, tokens: Sequence[int], /) -> np.ndarray:
    """The scores after each token."""
    rows = programs.ladder.widest.rows
    head = programs.compile_head(rows)
    numbers = np.arange(rows, dtype=np.int32)
    parts = [np.asarray(head(hidden, numbers))[:count] for _, count, hidden in forced(programs, tokens)]
    return np.concatenate(parts)
