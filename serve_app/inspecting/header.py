"""What a checkpoint's header says: sizes, tensors and how they are stored. Knows no network and no arithmetic."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import gguf

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.models import numbers as keys
from deployments.lm.models.assembly import is_derived, is_other_sense
from deployments.lm.models.numbers import Key
from deployments.messages.errors import CheckpointError

# Families call some of them differently.
_SIZES = {
    "layers": (keys.LAYERS, Key(gguf="block_count", hf="num_layers")),
    "width": (keys.WIDTH,),
    "heads": (keys.HEADS,),
    "kv_heads": (keys.KV_HEADS,),
    "head_dim": (keys.HEAD_DIM,),
    "feed_forward": (keys.FEED_FORWARD,),
    "experts": (Key(gguf="expert_count", hf="num_experts"),),
    "experts_used": (
        Key(gguf="expert_used_count", hf="num_experts_per_tok"),
        Key(gguf="expert_used_count", hf="top_k_experts"),
    ),
    "expert_feed_forward": (Key(gguf="expert_feed_forward_length", hf="moe_intermediate_size"),),
    "window": (keys.WINDOW,),
    "context": (keys.CONTEXT,),
}
_MTP_LAYERS = Key(gguf="nextn_predict_layers", hf="mtp_num_hidden_layers")
_MOST_VALUES = 8
_MTP = re.compile(r"(^|\.)(mtp|nextn)\.")
_BLOCK = re.compile(r"blk\.\d+\.")


@dataclass(frozen=True, kw_only=True)
class StoredType:
    """The tensors that are stored as one type."""

    name: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header says.

    Attributes:
        sizes: of the network, by name; several values where layers differ. What the header does not say is left out.
        parameters: of the language model.
        other_parameters: of what turns images and sound into embeddings, and of MTP layers; not loaded.
        mtp_tensors: how many belong to MTP layers.
    """

    sizes: dict[str, tuple[int, ...]]
    parameters: int
    other_parameters: int
    mtp_tensors: int
    types: tuple[StoredType, ...]
    file_bytes: int


def read_header(checkpoint: Checkpoint, /) -> Header:
    """Reads what there is; what is missing or absurd is left out, for others to complain of."""
    names = frozenset(language_tensors(checkpoint))
    counts = {name: math.prod(shape) for name, shape in checkpoint.shapes.items()}
    beside = [name for name in counts if name not in names and not is_derived(name)]
    return Header(
        sizes=_sizes(checkpoint),
        parameters=sum(counts[name] for name in names),
        other_parameters=sum(counts[name] for name in beside),
        mtp_tensors=len(mtp_tensors(checkpoint)),
        types=_types(checkpoint, counts=counts),
        file_bytes=sum(file.stat().st_size for file in checkpoint.files),
    )


def language_tensors(checkpoint: Checkpoint, /) -> Iterable[str]:
    """The names of the tensors that a language model is made of."""
    left_out = mtp_tensors(checkpoint)
    kept = (name for name in checkpoint.shapes if name not in left_out)
    return (name for name in kept if not is_other_sense(name) and not is_derived(name))


def mtp_tensors(checkpoint: Checkpoint, /) -> frozenset[str]:
    """The names of the tensors of MTP layers: `mtp.*`, or in GGUF files whole blocks that have `nextn.*` in them."""
    marked = {name for name in checkpoint.shapes if _MTP.search(name)}
    blocks = {match[0] for name in marked if (match := _BLOCK.match(name))}
    return frozenset(marked | {name for name in checkpoint.shapes if _is_in(name, blocks=blocks)})


def _sizes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    found = {
        name: next((values for key in known if (values := _numbers(checkpoint, key=key))), ())
        for name, known in _SIZES.items()
    }
    if checkpoint.format is Format.GGUF and found["layers"]:
        # These files count the blocks of MTP layers with the others.
        drafting = _numbers(checkpoint, key=_MTP_LAYERS) or (0,)
        found["layers"] = (found["layers"][0] - drafting[0],)
    found["vocabulary"] = (keys.Numbers(checkpoint).vocabulary,)
    return {name: values for name, values in found.items() if any(values)}


def _is_in(name: str, *, blocks: set[str]) -> bool:
    match = _BLOCK.match(name)
    return match is not None and match[0] in blocks


def _numbers(checkpoint: Checkpoint, *, key: Key) -> tuple[int, ...]:
    """The value, or the different ones of an array."""
    name = keys.Numbers(checkpoint).name(key)
    try:
        value = checkpoint.get(name, int)
        return () if value is None else (value,)
    except CheckpointError:
        pass
    try:
        values = {value for value in checkpoint.require(name, list) if type(value) is int}
    except CheckpointError:
        return ()
    return tuple(sorted(values)[:_MOST_VALUES])


def _types(checkpoint: Checkpoint, *, counts: dict[str, int]) -> tuple[StoredType, ...]:
    groups: dict[str, list[int]] = {}
    for name, kind in checkpoint.types.items():
        groups.setdefault(kind, []).append(counts[name])
    found = [
        StoredType(
            name=kind,
            tensors=len(parameters),
            parameters=sum(parameters),
            bytes=sum(_bytes(count, kind=kind, format=checkpoint.format) for count in parameters),
        )
        for kind, parameters in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.name)))


def _bytes(count: int, *, kind: str, format: Format) -> int:
    if format is Format.GGUF and kind in gguf.GGMLQuantizationType.__members__:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        return count // block * size
    # Safetensors' types have their bits in their names.
    bits = re.search(r"\d+", kind)
    return -(-count * int(bits[0] if bits else 8) // 8)
