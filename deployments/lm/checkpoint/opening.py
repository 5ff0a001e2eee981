"""Opens a model by what the path leads to: a GGUF file or set, a folder, or one safetensors file of a folder."""

from collections.abc import Sequence
from pathlib import Path

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.checkpoint.gguf_part import MAGIC
from deployments.lm.checkpoint.safetensors_folder import CONFIG, SafetensorsFolder
from deployments.lm.checkpoint.shards import SUFFIX
from deployments.lm.checkpoint.sniffing import HEAD_BYTES, described
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.splits import part_of
from deployments.lm.checkpoint.stored import StoredFile, listed_folder, readable
from deployments.messages.errors import CheckpointError

_PYTORCH = (".bin", ".pt", ".pth", ".ckpt")
_MOST_SHOWN = 8
# Image encoders that llama.cpp keeps in a file of their own, beside the model.
_PROJECTOR = "mmproj"


def open_checkpoint(path: str | Path, /) -> Checkpoint:
    """The model that a path leads to.

    Args:
        path: a GGUF file (any part of a split one), a folder with config.json and safetensors files or with one
            GGUF model, or a safetensors file beside a config.json.

    Raises:
        CheckpointError: there is none, more than one, or one that cannot be read here; and which.
    """
    with readable(Path(path)):
        return _open(Path(path))


def _open(path: Path) -> GgufFile | SafetensorsFolder:
    if path.is_dir():
        return _open_folder(path)
    head = StoredFile(path).read(0, size=HEAD_BYTES)
    if head.startswith((MAGIC, MAGIC[::-1])):
        return GgufFile(path)
    found = described(head)
    if found is None and (path.suffix == SUFFIX or head[8:9] == b"{"):
        if not (path.parent / CONFIG).is_file():
            raise CheckpointError(
                f"{path} has no {CONFIG} beside it, which says what network it is; put it there or use a GGUF file"
            )
        return SafetensorsFolder(path)
    found = found or f"it starts with {bytes(head[:8])!r}"
    raise CheckpointError(f"{path} is not a model file ({found}); give a .gguf file or a folder with safetensors files")


def _open_folder(path: Path) -> GgufFile | SafetensorsFolder:
    names = listed_folder(path)
    tensors = [name for name in names if name.endswith(SUFFIX)]
    if tensors and CONFIG in names:
        return SafetensorsFolder(path)
    ggufs = [name for name in names if name.endswith(".gguf") and not name.startswith(_PROJECTOR)]
    models = {(part_of(Path(name)) or (name,))[0]: name for name in reversed(ggufs)}
    if len(models) == 1:
        return GgufFile(path / next(iter(models.values())))
    raise CheckpointError(f"{path} {_whats_wrong(names, models=sorted(models.values()), tensors=tensors)}")


def _whats_wrong(names: Sequence[str], *, models: Sequence[str], tensors: Sequence[str]) -> str:
    if models:
        more = f" and {len(models) - _MOST_SHOWN} more" if len(models) > _MOST_SHOWN else ""
        return f"holds several GGUF models; give the path of one of {', '.join(models[:_MOST_SHOWN])}{more}"
    if tensors:
        return f"holds safetensors files and no {CONFIG}, which says what network they are; put it there"
    if any(name.endswith(_PYTORCH) for name in names):
        return "holds PyTorch files only, which can run code when they are read; convert them to safetensors"
    if CONFIG in names:
        return f"holds {CONFIG} and no weights; download the rest of the model"
    return "holds no model; give a .gguf file or a folder with config.json and safetensors files"
