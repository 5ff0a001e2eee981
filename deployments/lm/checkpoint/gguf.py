"""GGUF files: metadata as Python values, tensors as float32, read through the `gguf` package.

Knows the container, not what the tensors mean. Format: the ggml project's `docs/gguf.md`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.header import check_header
from deployments.messages.errors import CheckpointError

type MetadataValue = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]


class GgufFile:
    """An open GGUF file. Tensors stay on disk (memory-mapped) until they are asked for.

    Raises:
        CheckpointError: the file is missing, is not GGUF, or ends too early.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._reader = _open(self.path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._metadata: dict[str, MetadataValue] = {}

    @property
    def metadata_keys(self) -> frozenset[str]:
        return frozenset(self._reader.fields)

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        """The metadata value under `key`, or `None` when the file has none; `list` stands for any array.

        Raises:
            CheckpointError: the value is of another type, or not UTF-8.
        """
        if key not in self._reader.fields:
            return None
        if key not in self._metadata:
            self._metadata[key] = self._contents(key)
        value = self._metadata[key]
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path.name}: {key} is {type(value).__name__}, expected {kind.__name__}")
        return value

    def _contents(self, key: str) -> Any:
        try:
            return self._reader.fields[key].contents()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path.name}: {key} is not UTF-8 ({error}); download the file again") from error

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        """Like `get`, but a missing key is a `CheckpointError`."""
        value = self.get(key, kind)
        if value is None:
            raise CheckpointError(
                f"{self.path.name} has no metadata '{key}'; the file is incomplete, download it again"
            )
        return value

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name to shape, outermost dimension first."""
        return {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name to ggml type name."""
        return {name: tensor.tensor_type.name for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> Float32[np.ndarray, "..."]:
        """One tensor, dequantised, outermost dimension first (`[out, in]` for a matrix)."""
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path.name}: tensor {name} has type {tensor.tensor_type.name}, which cannot be read here; "
                "use a file with F32, F16, BF16, Q4_0..Q8_0 or K-quant tensors"
            ) from error
        return np.ascontiguousarray(values.reshape(self.shapes[name]), dtype=np.float32)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give the path of a .gguf file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file (it starts with {magic!r}); give the path of a .gguf file")
    try:
        check_header(path)
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}); download it again") from error
