"""Reads a safetensors header: where every tensor lies. Takes nothing that the file says on trust.

Format and rules: the safetensors project's README, "Format". A header is at most 100 MB there and here; tensors fill
the rest of the file without gaps or overlaps.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeGuard

from deployments.lm.checkpoint.plain import PLAIN
from deployments.lm.checkpoint.sniffing import HEAD_BYTES, described
from deployments.lm.checkpoint.stored import StoredFile, StoredTensor
from deployments.lm.checkpoint.strict_json import parse_object, unique
from deployments.messages.errors import CheckpointError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_LONGEST_NAME = 1024
_MOST_DIMENSIONS = 8
_MOST_VALUES = 2**48


def stored_tensors(file: StoredFile, /) -> Mapping[str, StoredTensor]:
    """The tensors of one file.

    Raises:
        CheckpointError: the file is of another kind, damaged or cut short.
    """
    found = described(file.read(0, size=HEAD_BYTES))
    if found is not None:
        raise CheckpointError(f"{file.path} is not a safetensors file ({found})")
    try:
        return _tensors(file)
    except (ValueError, MemoryError) as error:
        raise CheckpointError(f"{file.path} is damaged or cut short ({error}); download it again") from error


def _tensors(file: StoredFile) -> Mapping[str, StoredTensor]:
    if file.size < _LENGTH_BYTES:
        raise ValueError(f"it has {file.size} bytes")
    length = int.from_bytes(file.read(0, size=_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    if length > _LONGEST_HEADER or start > file.size:
        raise ValueError(f"its header has {length} bytes and the file {file.size}")
    header = parse_object(file.read(_LENGTH_BYTES, size=length), from_pairs=unique)
    header.pop("__metadata__", None)
    found = {_name(name): _tensor(entry, name=name, file=file, start=start) for name, entry in header.items()}
    _check_places(found, start=start, size=file.size)
    return found


def _name(name: str) -> str:
    if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"{name[:100]!r} is not a name for a tensor")
    return name


def _tensor(entry: object, *, name: str, file: StoredFile, start: int) -> StoredTensor:
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, places = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(kind, str) or not kind.isprintable() or not 0 < len(kind) <= 32:
        raise ValueError(f"tensor {name} has no type")
    if not _is_sizes(shape) or len(shape) > _MOST_DIMENSIONS or math.prod(n or 1 for n in shape) > _MOST_VALUES:
        raise ValueError(f"tensor {name} has no shape that a tensor can have")
    if not _is_sizes(places) or len(places) != 2 or places[0] > places[1]:
        raise ValueError(f"tensor {name} has no place in the file")
    plain, size = PLAIN.get(kind), places[1] - places[0]
    if plain is not None and math.prod(shape) * plain.size != size:
        raise ValueError(f"tensor {name} of type {kind} and shape {shape} has {size} bytes")
    return StoredTensor(
        file=file,
        begin=start + places[0],
        size=size,
        shape=tuple(shape),
        type=kind,
        block=1,
        block_bytes=plain.size if plain else 0,
        decode=plain.decode if plain else None,
    )


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < _MOST_VALUES for n in value)


def _check_places(tensors: Mapping[str, StoredTensor], *, start: int, size: int) -> None:
    placed = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].size))
    if placed and placed[0][1].begin != start:
        raise ValueError(f"{placed[0][0]} does not begin where the header ends")
    for (left, first), (right, second) in pairwise(placed):
        if first.begin + first.size != second.begin:
            raise ValueError(f"{right} does not begin where {left} ends")
    end = placed[-1][1].begin + placed[-1][1].size if placed else start
    if end != size:
        raise ValueError(f"its tensors end at byte {end} and the file at {size}")
