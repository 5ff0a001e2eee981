"""Folders of Hugging Face: config.json for metadata, safetensors files for tensors.

Knows the layout, not what the keys and tensors mean; both stand as they do in the files, `text_config` apart.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.hf_config import Configured
from deployments.lm.checkpoint.safetensors_header import stored_tensors
from deployments.lm.checkpoint.shards import Shards, find_shards
from deployments.lm.checkpoint.source import Format
from deployments.lm.checkpoint.stored import StoredFile, StoredTensor, read_tensor
from deployments.messages.errors import CheckpointError

CONFIG = "config.json"
_QUANTISED = ("quantization_config", "compression_config")
_READABLE = "F32, F16 or BF16"
_MOST_SHOWN = 8


class SafetensorsFolder(Configured):
    """An open model folder. Tensors stay on disk until they are asked for.

    Args:
        path: of the folder, or of one safetensors file beside a config.json.

    Attributes:
        path: of the folder.
        files: config.json, an index if there is one, and all safetensors files, in order.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights are quantised in a way that cannot be read here.
    """

    def __init__(self, path: str | Path) -> None:
        given = Path(path)
        self.path = given if given.is_dir() else given.parent
        name = self.path.absolute().name
        super().__init__(self.path / CONFIG, name=name, source=f"{name}/{CONFIG}")
        self._refuse_quantised()
        shards = find_shards(self.path, only=None if given.is_dir() else given)
        self._tensors = _merge(shards)
        self.files = (self.path / CONFIG, *([shards.index] if shards.index else []), *shards.paths)

    @property
    def has_values(self) -> bool:
        return True

    @property
    def format(self) -> Format:
        return Format.SAFETENSORS

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name to shape, outermost dimension first."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name to the safetensors name of its type."""
        return {name: tensor.type for name, tensor in self._tensors.items()}

    def tensor(self, name: str, *, part: slice | None = None) -> Float32[np.ndarray, "..."]:
        """One tensor as float32, outermost dimension first (`[out, in]` for a matrix)."""
        return read_tensor(self._tensors, name=name, part=part, source=self.name, readable=_READABLE)

    def _refuse_quantised(self) -> None:
        found = next((key for key in self._metadata if key.split(".")[0] in _QUANTISED), None)
        if found is not None:
            outer = found.split(".")[0]
            method = self._metadata.get(f"{outer}.quant_method", self._metadata.get(f"{outer}.format", "unnamed"))
            raise CheckpointError(
                f"{self.name} is quantised ({outer}: {method!r:.40}), which cannot be read here; "
                "use the unquantised model or a GGUF file of it"
            )


def _merge(shards: Shards) -> Mapping[str, StoredTensor]:
    """The tensors of all files; an index decides between files that hold the same one."""
    found: dict[str, StoredTensor] = {}
    for path in shards.paths:
        for name, tensor in stored_tensors(StoredFile(path)).items():
            if shards.owners.get(name, path.name) != path.name:
                continue
            if name in found:
                raise CheckpointError(
                    f"{found[name].file.path} and {path} both hold {name}; leave only one model in the folder"
                )
            found[name] = tensor
    absent = sorted(set(shards.owners) - set(found))
    if absent:
        shown = ", ".join(f"{name!r:.100}" for name in absent[:_MOST_SHOWN])
        more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
        raise CheckpointError(
            f"{shards.index} names {shown}{more}, which the files it says do not hold; download the model again"
        )
    return found
