"""How much memory a checkpoint takes once it is loaded, and which devices have it. Sums bytes; loads nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from deployments.lm.cache.layout import CacheShape, Layout
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.quant.linear import Precision
from serve_app.compiling.chips import CHIPS
from serve_app.inspecting.header import language_tensors

_CHIPS = ("v5e", "v6e", "v5p")
_COUNTS = (1, 4, 8)
_SCALE_BYTES = 4
_VECTOR_BYTES = 4
_PAGE = 64
_KILO = 1024
# Programs keep their temporaries beside weights and cache; a tenth is far more than the largest window takes.
_USABLE = 0.9
_HEADS = ("output.weight", "lm_head.weight")
_EMBEDDINGS = ("token_embd.weight", "embed_tokens.weight", "wte.weight")
# Tables that rows are taken from and that are no head (Gemma 4).
_TABLES = ("per_layer_token_embd.weight", "embed_tokens_per_layer.weight")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a checkpoint takes in one precision, in bytes.

    Attributes:
        cache_per_1k: of 1024 tokens of prompt and reply; `None` where the network is not known here.
        state_per_request: of what recurrent layers keep, however long the text.
    """

    precision: str
    weights: int
    cache_per_1k: int | None
    state_per_request: int | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether weights and cache fit a device.

    Attributes:
        bytes: memory of all its chips.
        tokens: precisions to tokens of cache beside the weights, in thousands of 1024; `None` where the weights do not
            fit, 0 where they do but the network is not known here.
    """

    device: str
    bytes: int
    tokens: dict[str, int | None]


def memory_of(checkpoint: Checkpoint, /, *, layout: Layout | None) -> tuple[Memory, ...]:
    """One for each precision."""
    return tuple(_memory(checkpoint, layout=layout, precision=precision) for precision in Precision)


def fits(memory: tuple[Memory, ...], /, *, free_here: int | None) -> tuple[Fit, ...]:
    """This machine's processor, and TPU slices with the weights spread over their chips."""
    devices = [("this machine's memory now", free_here)] if free_here is not None else []
    devices += [(f"{chip} x {count}", CHIPS[chip].memory * count) for chip in _CHIPS for count in _COUNTS]
    return tuple(
        Fit(device=name, bytes=size, tokens={one.precision: _room(one, size=size) for one in memory})
        for name, size in devices
    )


def _room(memory: Memory, *, size: int) -> int | None:
    left = int(size * _USABLE) - memory.weights - (memory.state_per_request or 0)
    if left < 0:
        return None
    return 0 if not memory.cache_per_1k else left // memory.cache_per_1k


def _memory(checkpoint: Checkpoint, *, layout: Layout | None, precision: Precision) -> Memory:
    cache = state = None
    if layout is not None:
        dtype = precision.cache_dtype
        cache = CacheShape(layout=layout, pages=1, page_size=_PAGE).page_nbytes(dtype) * (_KILO // _PAGE)
        state = CacheShape(layout=layout, pages=1, page_size=_PAGE, states=1).state_nbytes
    return Memory(
        precision=precision.value,
        weights=sum(_weights(checkpoint, precision=precision)),
        cache_per_1k=cache,
        state_per_request=state,
    )


def _weights(checkpoint: Checkpoint, *, precision: Precision) -> Iterator[int]:
    """Bytes of each tensor as it is kept: matrices in the precision, embedding tables and vectors as floats."""
    is_int8 = precision.has_int8_weights
    float_bytes = precision.embedding_dtype.itemsize
    has_head = any(name.endswith(_HEADS) and not name.startswith("blk.") for name in checkpoint.shapes)
    for name in language_tensors(checkpoint):
        shape = checkpoint.shapes[name]
        count = math.prod(shape)
        matrix = count + math.prod(shape[:-1]) * _SCALE_BYTES if is_int8 else count * float_bytes
        if name.endswith(_TABLES):
            yield count * float_bytes
        elif name.endswith(_EMBEDDINGS):
            # A head that is this table lies in the same memory where both are floats.
            yield count * float_bytes + (matrix if is_int8 and not has_head else 0)
        else:
            yield matrix if len(shape) > 1 else count * _VECTOR_BYTES
