"""A checkpoint seen without its weights: whoever builds a network of it gets one of shapes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.source import Checkpoint, Format, MetadataValue


class Outline:
    """A checkpoint whose tensors are left alone: their names and shapes, and all its numbers."""

    def __init__(self, checkpoint: Checkpoint, /) -> None:
        self._checkpoint = checkpoint

    @property
    def name(self) -> str:
        return self._checkpoint.name

    @property
    def format(self) -> Format:
        return self._checkpoint.format

    @property
    def architecture(self) -> str:
        return self._checkpoint.architecture

    @property
    def files(self) -> tuple[Path, ...]:
        return self._checkpoint.files

    @property
    def has_values(self) -> bool:
        return False

    @property
    def metadata_keys(self) -> frozenset[str]:
        return self._checkpoint.metadata_keys

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        return self._checkpoint.get(key, kind)

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        return self._checkpoint.require(key, kind)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._checkpoint.shapes

    @property
    def types(self) -> Mapping[str, str]:
        return self._checkpoint.types

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """For numbers that are kept as tensors: rotary factors."""
        return self._checkpoint.tensor(name, part=part)
