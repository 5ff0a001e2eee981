"""A model without its weights: a configuration as Hugging Face writes it, alone in a file.

Says what network it is, and so what can be compiled for it; there is nothing to serve.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.hf_config import Configured
from deployments.lm.checkpoint.source import Format
from deployments.messages.errors import CheckpointError

SUFFIXES = (".yaml", ".yml", ".json")


class ShapeFile(Configured):
    """An open one, YAML or JSON. It lists no tensors: it has those that its family takes.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """

    def __init__(self, path: str | Path, /) -> None:
        self.path = Path(path)
        self.files = (self.path,)
        super().__init__(self.path, name=self.path.stem, source=str(self.path))

    @property
    def has_values(self) -> bool:
        return False

    @property
    def format(self) -> Format:
        return Format.SAFETENSORS

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def types(self) -> Mapping[str, str]:
        return {}

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """Always a `CheckpointError`."""
        raise CheckpointError(f"{self.path} is a shape without weights; give the model itself to run it")
