"""Walks a GGUF header before the `gguf` package reads it, since that trusts every count it finds in the file.

A damaged or hostile header costs one sentence, and never more memory than the file is long. Format: the ggml
project's `docs/gguf.md`.
"""

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import gguf

_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def check_header(path: Path, /) -> None:
    """Raises `ValueError`, saying what is wrong, unless every count and every tensor lies within the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = _Walk(data)
        version = walk.number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"its format version is {version}, and only {_VERSIONS} can be read")
        tensors, pairs = walk.number("<Q"), walk.number("<Q")
        walk.repeat(pairs, walk.pair)
        ends: list[int] = []
        walk.repeat(tensors, lambda: ends.append(walk.tensor()))
        start = -(-walk.offset // walk.alignment) * walk.alignment
        if ends and start + max(ends) > len(data):
            raise ValueError(f"its tensors end at byte {start + max(ends)} and the file at {len(data)}")


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 4
        self.alignment = _ALIGNMENT

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
        if count > len(self._data) - self.offset:
            raise ValueError(f"it announces {count} entries in {len(self._data) - self.offset} bytes")
        for _ in range(count):
            action()

    def text(self) -> bytes:
        size = self.number("<Q")
        return self._data[self.skip(size) : self.offset]

    def pair(self) -> None:
        key, kind = self.text(), self.number("<I")
        if key == b"general.alignment" and kind == 4:
            self.alignment = self.number("<I") or _ALIGNMENT
        elif kind == _ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if inner == _STRING:
                self.repeat(count, self.text)
            else:
                self.skip(count * self._size(inner))
        elif kind == _STRING:
            self.text()
        else:
            self.skip(self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a metadata value has the unknown type {kind}")
        return _SIZES[kind]

    def tensor(self) -> int:
        """Where a tensor's data end, counted from the first one's beginning."""
        name, dimensions = self.text(), self.number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        elements = math.prod(self.number("<Q") for _ in range(dimensions))
        kind, begin = gguf.GGMLQuantizationType(self.number("<I")), self.number("<Q")
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return begin + elements * size // block
