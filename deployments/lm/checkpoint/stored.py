"""Bytes of a model file, and tensors decoded from them piece by piece. Knows no file format.

Files are read rather than mapped: pages of a mapping count as memory of the process that looked at them, and end it
when the file is cut short under it.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8

from deployments.messages.errors import CheckpointError

type Decode = Callable[[UInt8[np.ndarray, "bytes"]], np.ndarray]

# Decoding makes several arrays of this size; they should stay in a core's own cache.
_PIECE_VALUES = 2**17


class StoredFile:
    """A regular file that must stay as it was when this was made.

    Raises:
        CheckpointError: there is no such file, or it is not a regular one.
    """

    def __init__(self, path: Path, /) -> None:
        self.path = path
        if "\0" in str(path):
            raise CheckpointError(f"{str(path)!r} is not a path; give the path of a model file or folder")
        with readable(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is not a regular file; give the path of a model file")
        self.size = status.st_size
        self._identity = _identity(status)

    @contextmanager
    def opened(self) -> Iterator[FileIO]:
        """The file, open for reading, if it is still the same one."""
        with readable(self.path), self.path.open("rb", buffering=0) as file:
            if _identity(os.fstat(file.fileno())) != self._identity:
                raise CheckpointError(f"{self.path} changed while it was being read; start again once it is complete")
            yield file

    def read(self, begin: int, *, size: int) -> bytearray:
        """At most `size` bytes from `begin` on; fewer where the file ends."""
        found = bytearray(max(0, min(size, self.size - begin)))
        with self.opened() as file:
            file.seek(begin)
            _fill(memoryview(found), file=file)
        return found


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies and how its bytes become numbers.

    Attributes:
        begin: of its first byte, counted from the file's beginning.
        size: bytes it takes there.
        shape: outermost dimension first.
        type: what the format calls the type it is stored as.
        block: so many neighbouring values are stored together,
        block_bytes: in so many bytes.
        decode: makes values of the bytes of whole blocks; `None` for a type that cannot be read here.
    """

    file: StoredFile
    begin: int
    size: int
    shape: tuple[int, ...]
    type: str
    block: int
    block_bytes: int
    decode: Decode | None

    def read(self, part: slice | None, /) -> Float32[np.ndarray, "..."]:
        """The values, or those of a part of the outermost dimension.

        Raises:
            NotImplementedError: the type cannot be read here.
            ValueError: the values cannot be had, and why.
        """
        if part is None:
            return self._values(0, np.empty(self.shape, np.float32))
        if not self.shape:
            raise ValueError("it is a single number, which has no parts")
        start, stop, step = part.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"a part must be contiguous, not {part}")
        inner = self.shape[1:]
        first = start * int(np.prod(inner, dtype=np.int64))
        if first % self.block:
            return self.read(None)[part].copy()
        return self._values(first // self.block, np.empty((max(stop - start, 0), *inner), np.float32))

    def _values(self, first: int, out: Float32[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
        """Fills `out` from the block of that number on."""
        if self.decode is None:
            raise NotImplementedError(self.type)
        flat = out.reshape(-1)
        blocks = -(-flat.size // self.block)
        pieces = max(1, _PIECE_VALUES // self.block)
        buffer = np.empty(min(blocks, pieces) * self.block_bytes, np.uint8)
        with self.file.opened() as file, np.errstate(all="ignore"):
            file.seek(self.begin + first * self.block_bytes)
            for begin in range(0, blocks, pieces):
                wanted = flat[begin * self.block : (begin + pieces) * self.block]
                stored = buffer[: -(-wanted.size // self.block) * self.block_bytes]
                _fill(memoryview(stored), file=file)
                wanted[:] = self.decode(stored).reshape(-1)[: wanted.size]
        return out


def read_tensor(
    tensors: Mapping[str, StoredTensor], *, name: str, part: slice | None, source: str, readable: str
) -> Float32[np.ndarray, "..."]:
    """A tensor of a checkpoint, or a part of it.

    Args:
        source: what to call the checkpoint.
        readable: the types it could have been stored as.

    Raises:
        CheckpointError: there is no such tensor, its type cannot be read, or its bytes are not those of numbers.
    """
    if name not in tensors:
        raise CheckpointError(f"{source} has no tensor {name}; the file is incomplete, download it again")
    tensor = tensors[name]
    try:
        return tensor.read(part)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{source}: tensor {name} has type {tensor.type}, which cannot be read here; "
            f"use a file with {readable} tensors"
        ) from error
    except MemoryError as error:
        raise CheckpointError(
            f"{source}: there is no memory for tensor {name} of shape {tensor.shape}; use a smaller model"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{source}: tensor {name} cannot be read ({error}); download the file again") from error


def listed_folder(path: Path, /) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        CheckpointError: it cannot be looked into.
    """
    with readable(path):
        return sorted(os.listdir(path))


def _fill(view: memoryview, *, file: FileIO) -> None:
    while view:
        count = file.readinto(view)
        if not count:
            raise CheckpointError(f"{file.name} was cut short while it was being read; start again once it is complete")
        view = view[count:]


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns what the operating system says against a path into a `CheckpointError` about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; give the path of a model file or folder") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
