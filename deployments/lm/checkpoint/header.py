"""Walks a GGUF header: where every value and every tensor lies. Takes nothing that the file says on trust.

A damaged or hostile header costs one sentence, and never more memory than the file is long. Format: the ggml
project's `docs/gguf.md`.
"""

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import gguf
import numpy as np

from deployments.lm.checkpoint.source import MetadataValue
from deployments.lm.checkpoint.stored import StoredFile

_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 1024
# A hundred times what models have; each takes more memory here than in the file.
_MOST_ENTRIES = 100_000
_ALIGNMENT = 32
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1"} | {
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LENGTH = struct.Struct("<Q")


class WrongEndian(ValueError):
    """The file is of the other byte order."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a metadata value lies. `count` is `None` for a single value; `kind` is then its own, else its elements'."""

    kind: int
    count: int | None
    begin: int
    end: int

    def value(self, data: bytes | bytearray, /) -> MetadataValue:
        """What the bytes from `begin` to `end` say.

        Raises:
            UnicodeDecodeError: a text is not UTF-8.
        """
        if self.kind == _STRING:
            texts = list(_texts(data, count=1 if self.count is None else self.count))
            return texts if self.count is not None else texts[0]
        numbers = np.frombuffer(data, _NUMBERS[self.kind])
        values: list[int] | list[float] | list[bool] = (numbers != 0 if self.kind == _BOOL else numbers).tolist()
        return values if self.count is not None else values[0]


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies, counted from the first one's beginning; its shape is outermost dimension first."""

    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    begin: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a GGUF file says it holds.

    Attributes:
        start: of the first tensor in the file.
    """

    fields: Mapping[str, Field]
    tensors: Mapping[str, TensorEntry]
    start: int


def read_header(file: StoredFile, /) -> Header:
    """Raises `ValueError`, saying what is wrong, unless every count and every tensor lies within the file."""
    # Mapped, for nearly all of it is passed over; the rest of a file never is.
    with file.opened() as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = _Walk(data)
        version = walk.number("<I")
        if version & 0xFFFF == 0 and version >> 24 in _VERSIONS:
            raise WrongEndian("its numbers are big-endian")
        if version not in _VERSIONS:
            raise ValueError(f"its format version is {version}, and only {_VERSIONS} can be read")
        tensors, pairs = walk.number("<Q"), walk.number("<Q")
        walk.repeat(pairs, walk.pair)
        walk.repeat(tensors, walk.tensor)
        header = Header(
            fields=walk.fields, tensors=walk.tensors, start=-(-walk.offset // walk.alignment) * walk.alignment
        )
        _check_places(header, alignment=walk.alignment, size=len(data))
        return header


def _check_places(header: Header, *, alignment: int, size: int) -> None:
    placed = sorted(header.tensors.items(), key=lambda item: (item[1].begin, item[1].size))
    for name, entry in placed:
        end = header.start + entry.begin + entry.size
        if end > size:
            raise ValueError(f"tensor {name} ends at byte {end} and the file at {size}")
        if entry.begin % alignment:
            raise ValueError(f"tensor {name} begins at {entry.begin}, which is no multiple of {alignment}")
    for (left, first), (right, second) in pairwise(placed):
        if first.begin + first.size > second.begin:
            raise ValueError(f"tensors {left} and {right} overlap")


def _texts(data: bytes | bytearray, *, count: int) -> list[str]:
    found = []
    offset = 0
    for _ in range(count):
        begin = offset + _LENGTH.size
        offset = begin + _LENGTH.unpack_from(data, offset)[0]
        found.append(data[begin:offset].decode())
    return found


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 4
        self.alignment = _ALIGNMENT
        self.fields: dict[str, Field] = {}
        self.tensors: dict[str, TensorEntry] = {}

    def number(self, layout: str) -> int:
        value: int = struct.unpack_from(layout, self._data, self.skip(struct.calcsize(layout)))[0]
        return value

    def skip(self, size: int) -> int:
        """Moves on by `size` bytes and returns where they begin."""
        begin, end = self.offset, self.offset + size
        if end > len(self._data):
            raise ValueError(f"byte {end} is needed and the file ends at {len(self._data)}")
        self.offset = end
        return begin

    def repeat(self, count: int, action: Callable[[], object]) -> None:
        if count > min(_MOST_ENTRIES, len(self._data) - self.offset):
            raise ValueError(f"it announces {count} entries in {len(self._data) - self.offset} bytes")
        for _ in range(count):
            action()

    def name(self) -> str:
        size = self.number("<Q")
        if size > _LONGEST_NAME:
            raise ValueError(f"a name is {size} bytes long")
        name = self._data[self.skip(size) : self.offset].decode()
        if not name.isprintable():
            raise ValueError(f"the name {name!r} has characters that cannot be printed")
        return name

    def pair(self) -> None:
        key, kind = self.name(), self.number("<I")
        if key in self.fields:
            raise ValueError(f"it has {key} twice")
        count = None
        if kind == _ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
        if kind != _STRING and kind not in _NUMBERS:
            raise ValueError(f"{key} has the unknown type {kind}")
        begin = self.offset
        if kind == _STRING:
            self._skip_texts(1 if count is None else count)
        else:
            self.skip((1 if count is None else count) * np.dtype(_NUMBERS[kind]).itemsize)
        self.fields[key] = Field(kind=kind, count=count, begin=begin, end=self.offset)
        if key == "general.alignment":
            self._align(self.fields[key])

    def _skip_texts(self, count: int) -> None:
        # Vocabularies have hundreds of thousands of them.
        data, offset, last = self._data, self.offset, len(self._data) - _LENGTH.size
        if count * _LENGTH.size > len(data) - offset:
            raise ValueError(f"it announces {count} texts in {len(data) - offset} bytes")
        for _ in range(count):
            if offset > last:
                raise ValueError(f"byte {offset + _LENGTH.size} is needed and the file ends at {len(data)}")
            offset += _LENGTH.size + _LENGTH.unpack_from(data, offset)[0]
        self.skip(offset - self.offset)

    def _align(self, field: Field) -> None:
        alignment = field.value(self._data[field.begin : field.end]) if field.kind == 4 else None
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment}, which is no power of two")
        self.alignment = alignment

    def tensor(self) -> None:
        name, dimensions = self.name(), self.number("<I")
        if name in self.tensors:
            raise ValueError(f"it has tensor {name} twice")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        kind, begin = gguf.GGMLQuantizationType(self.number("<I")), self.number("<Q")
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block:
            raise ValueError(f"tensor {name} of type {kind.name} has the shape {shape}")
        self.tensors[name] = TensorEntry(shape=shape, type=kind, begin=begin, size=math.prod(shape) // block * size)
