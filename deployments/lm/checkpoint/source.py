"""What a model file is to those who build networks and tokenizers from it, whichever format it has."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Float32

type MetadataValue = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]


class Format(StrEnum):
    """Whose names and layouts a checkpoint's tensors and numbers have."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


class Checkpoint(Protocol):
    """Tensors by name, numbers by key. Tensors stay on disk until they are asked for.

    Attributes:
        name: for sentences about it.
        format: decides which tensor names and keys there are: those of GGUF, or those of Hugging Face, where keys are
            those of config.json, of nested objects joined by dots (`rope_scaling.factor`), with the text model's own
            part (`text_config`) taken as if it stood outside.
        architecture: `general.architecture`, or the text model's `model_type`.
        files: all of them, in an order that does not change.
        has_values: whether its tensors can be read; where they cannot, a network of it is one of shapes.
    """

    @property
    def name(self) -> str: ...

    @property
    def format(self) -> Format: ...

    @property
    def architecture(self) -> str: ...

    @property
    def files(self) -> tuple[Path, ...]: ...

    @property
    def has_values(self) -> bool: ...

    @property
    def metadata_keys(self) -> frozenset[str]: ...

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        """The value under `key`, or `None` when there is none; `list` stands for any array.

        Raises:
            CheckpointError: the value is of another type.
        """
        ...

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        """Like `get`, but a missing key is a `CheckpointError`."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name to shape, outermost dimension first."""
        ...

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name to the name of the type it is stored as."""
        ...

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """One tensor as float32, outermost dimension first (`[out, in]` for a matrix).

        Args:
            part: of the outermost dimension; nothing else is read or converted.

        Raises:
            CheckpointError: it is stored as a type that cannot be read here.
        """
        ...
