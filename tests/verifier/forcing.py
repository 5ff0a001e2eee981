"""Teacher forcing through the real window programs: tokens that are known go in, hidden states and logits come out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Array

from deployments.lm.cache.pages import CacheShape
from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
from deployments.lm.models.llama.modeling import Llama
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest
from deployments.verifier.ladder import build_ladder
from deployments.verifier.packing import pack
from deployments.verifier.programs import Programs
from deployments.verifier.scheduler import Span, StepPlan
from deployments.verifier.slots import Slot


def network(path: str, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Llama:
    """With native kernels where they are asked for and can be had."""
    chosen, _ = choose_kernels(kernels, cache=Path.home() / ".cache" / "outrider" / "kernels")
    return load_network(GgufFile(path), precision=precision, kernels=chosen)


def programs_for(model: Llama, *, precision: Precision, rows: int, context: int, page_size: int) -> Programs:
    """One rung of `rows` rows and one slot."""
    slot_pages = -(-context // page_size)
    shape = CacheShape(
        layers=model.config.layers,
        pages=slot_pages + 1,
        page_size=page_size,
        kv_heads=model.config.kv_heads,
        head_dim=model.config.head_dim,
    )
    return Programs(
        model,
        ladder=build_ladder((rows,), slots=1, draft_k=0),
        shape=shape,
        cache_dtype=precision.cache_dtype,
        slots=1,
        slot_pages=slot_pages,
        longest=1,
        progress=lambda text: None,
    )


def forced(programs: Programs, tokens: Sequence[int], /) -> Iterator[tuple[int, int, Array]]:
    """Per window: the position of its first token, how many there are, and the hidden states; in order."""
    (rung,) = programs.ladder.rungs
    pages = tuple(range(1, programs.slot_pages + 1))
    request = GenerateRequest(request_id="forced", prompt_ids=tuple(tokens), max_tokens=1)
    slot = Slot(index=0, request=request, tokens=list(tokens), pages=pages, admitted_at=0.0)
    for start in range(0, len(tokens), rung.rows):
        chunk = tuple(tokens[start : start + rung.rows])
        plan = StepPlan(spans=(Span(slot=slot, start=start, tokens=chunk, emits=0),))
        window = pack(plan, rung=rung, emits=0, page_size=programs.shape.page_size, slot_pages=programs.slot_pages)
        yield start, len(chunk), programs.run_body(window)


def forced_logits(programs: Programs, tokens: Sequence[int], /) -> np.ndarray:
    """The scores after each token."""
    rows = programs.ladder.widest.rows
    head = programs.compile_head(rows)
    numbers = np.arange(rows, dtype=np.int32)
    parts = [np.asarray(head(hidden, numbers))[:count] for _, count, hidden in forced(programs, tokens)]
    return np.concatenate(parts)
