"""A model without its weights: a configuration as Hugging Face writes it, alone in a file.

Says what network it is, and so what can be compiled for it; there is nothing to serve.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.hf_config import read_config
from deployments.lm.checkpoint.metadata import architecture_name, missing, typed
from deployments.lm.checkpoint.source import Format, MetadataValue
from deployments.messages.errors import CheckpointError

SUFFIXES = (".yaml", ".yml", ".json")


class ShapeFile:
    """An open one, YAML or JSON. It lists no tensors: it has those that its family takes.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """

    def __init__(self, path: str | Path, /) -> None:
        self.path = Path(path)
        self.name = self.path.stem
        self.files = (self.path,)
        self._metadata = read_config(self.path)

    @property
    def has_values(self) -> bool:
        return False

    @property
    def format(self) -> Format:
        return Format.SAFETENSORS

    @property
    def architecture(self) -> str:
        return architecture_name(self.require("model_type", str), source=self.name)

    @property
    def metadata_keys(self) -> frozenset[str]:
        return frozenset(self._metadata)

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        """The value under `key`, or `None`.

        Raises:
            CheckpointError: it is of another type.
        """
        value = self._metadata.get(key)
        return None if value is None else typed(value, kind, key=key, source=str(self.path))

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        """Like `get`, but a missing key is a `CheckpointError`."""
        value = self.get(key, kind)
        if value is None:
            raise missing(key, source=str(self.path))
        return value

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def types(self) -> Mapping[str, str]:
        return {}

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """Always a `CheckpointError`."""
        raise CheckpointError(f"{self.path} is a shape without weights; give the model itself to run it")
