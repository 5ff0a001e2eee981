"""GGUF files, whole or split: metadata as Python values, tensors as float32, decoded by the `gguf` package.

Knows the container, not what the tensors mean. Format: the ggml project's `docs/gguf.md`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.gguf_part import GgufPart
from deployments.lm.checkpoint.metadata import architecture_name, missing, typed
from deployments.lm.checkpoint.source import Format, MetadataValue
from deployments.lm.checkpoint.splits import all_parts
from deployments.lm.checkpoint.stored import read_tensor

_READABLE = "F32, F16, BF16, Q4_0..Q8_0 or K-quant"


class GgufFile:
    """An open GGUF file, or all files of a split one. Tensors stay on disk until they are asked for.

    Args:
        path: of the file; of a split one, any part.

    Attributes:
        path: of the file; of a split one, the first part's.
        files: all parts, in order.

    Raises:
        CheckpointError: a file is missing, is not GGUF, ends too early or belongs to another set.
    """

    def __init__(self, path: str | Path) -> None:
        parts = all_parts(GgufPart(Path(path)))
        self._first = parts[0]
        self._metadata: dict[str, MetadataValue] = {}
        self._tensors = {name: tensor for part in parts for name, tensor in part.tensors().items()}
        self.path = self._first.path
        self.files = tuple(part.path for part in parts)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def has_values(self) -> bool:
        return True

    @property
    def format(self) -> Format:
        return Format.GGUF

    @property
    def architecture(self) -> str:
        return architecture_name(self.require("general.architecture", str), source=self.name)

    @property
    def metadata_keys(self) -> frozenset[str]:
        return frozenset(self._first.header.fields)

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        """The metadata value under `key`, or `None` when the file has none; `list` stands for any array.

        Raises:
            CheckpointError: the value is of another type, or not UTF-8.
        """
        if key not in self._metadata:
            value = self._first.value(key)
            if value is None:
                return None
            self._metadata[key] = value
        return typed(self._metadata[key], kind, key=key, source=self.name)

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        """Like `get`, but a missing key is a `CheckpointError`."""
        value = self.get(key, kind)
        if value is None:
            raise missing(key, source=self.name)
        return value

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name to shape, outermost dimension first."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name to ggml type name."""
        return {name: tensor.type for name, tensor in self._tensors.items()}

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """One tensor, dequantised, outermost dimension first (`[out, in]` for a matrix)."""
        return read_tensor(self._tensors, name=name, part=part, source=self.name, readable=_READABLE)
