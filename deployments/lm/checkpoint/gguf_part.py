"""One GGUF file: its header, the values in it and where its tensors lie. Knows nothing of the other parts of a set."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from jaxtyping import Float32, UInt8

from deployments.lm.checkpoint.header import Header, TensorEntry, WrongEndian, read_header
from deployments.lm.checkpoint.metadata import typed
from deployments.lm.checkpoint.plain import PLAIN
from deployments.lm.checkpoint.sniffing import HEAD_BYTES, described
from deployments.lm.checkpoint.source import MetadataValue
from deployments.lm.checkpoint.stored import Decode, StoredFile, StoredTensor
from deployments.messages.errors import CheckpointError

MAGIC = b"GGUF"


class GgufPart:
    """A GGUF file with a header that was looked through.

    Raises:
        CheckpointError: it is missing, is not GGUF, of the other byte order, damaged or cut short.
    """

    def __init__(self, path: Path, /) -> None:
        self.file = StoredFile(path)
        self.header = _header(self.file)

    @property
    def path(self) -> Path:
        return self.file.path

    def value(self, key: str, /) -> MetadataValue | None:
        """The metadata value under `key`.

        Raises:
            CheckpointError: it is not UTF-8.
        """
        field = self.header.fields.get(key)
        if field is None:
            return None
        try:
            return field.value(self.file.read(field.begin, size=field.end - field.begin))
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path.name}: {key} is not UTF-8 ({error}); download the file again") from error

    def number(self, key: str, /) -> int | None:
        """The whole number under `key`."""
        value = self.value(key)
        return None if value is None else typed(value, int, key=key, source=self.path.name)

    def tensors(self) -> Mapping[str, StoredTensor]:
        """Where each tensor lies and how it is decoded."""
        return {name: self._stored(entry) for name, entry in self.header.tensors.items()}

    def _stored(self, entry: TensorEntry) -> StoredTensor:
        block, size = gguf.GGML_QUANT_SIZES[entry.type]
        plain = PLAIN.get(entry.type.name)
        return StoredTensor(
            file=self.file,
            begin=self.header.start + entry.begin,
            size=entry.size,
            shape=entry.shape,
            type=entry.type.name,
            block=block,
            block_bytes=size,
            decode=plain.decode if plain else _decode_blocks(entry.type),
        )


def _decode_blocks(kind: gguf.GGMLQuantizationType) -> Decode:
    def decode(stored: UInt8[np.ndarray, " bytes"]) -> Float32[np.ndarray, " values"]:
        # As one row: the package takes rows in groups, and blocks know nothing of rows.
        values: Float32[np.ndarray, " values"] = gguf.dequantize(stored[None], kind)[0]
        return values

    return decode


def _header(file: StoredFile) -> Header:
    head = file.read(0, size=HEAD_BYTES)
    if head.startswith(MAGIC[::-1]):
        raise _other_endian(file)
    if not head.startswith(MAGIC):
        found = described(head) or f"it starts with {bytes(head[:4])!r}"
        raise CheckpointError(f"{file.path} is not a GGUF file ({found}); give the path of a .gguf file")
    try:
        return read_header(file)
    except WrongEndian as error:
        raise _other_endian(file) from error
    except (ValueError, MemoryError) as error:
        raise CheckpointError(f"{file.path} is damaged or cut short ({error}); download it again") from error


def _other_endian(file: StoredFile) -> CheckpointError:
    return CheckpointError(
        f"{file.path} is a big-endian GGUF file, which cannot be read here; "
        "convert it with `gguf-convert-endian FILE little` or download the little-endian one"
    )
