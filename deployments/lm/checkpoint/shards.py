"""Which safetensors files of a folder are its model: one, those an index names, or all.

In the order transformers looks: `model.safetensors`, then `model.safetensors.index.json`. Knows no tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deployments.lm.checkpoint.stored import StoredFile
from deployments.lm.checkpoint.strict_json import parse_object, unique
from deployments.messages.errors import CheckpointError

SUFFIX = ".safetensors"
_WHOLE = f"model{SUFFIX}"
_INDEX = f"{_WHOLE}.index.json"
_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.DOTALL)
_LONGEST_INDEX = 100_000_000
_MOST_SHARDS = 1000
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The files of a model, in order.

    Attributes:
        owners: tensor name to the name of the file that an index says it is in; empty without an index.
        index: the index's own file.
    """

    paths: tuple[Path, ...]
    owners: Mapping[str, str] = field(default_factory=dict)
    index: Path | None = None


def find_shards(folder: Path, /, *, only: Path | None = None) -> Shards:
    """The model's files in a folder.

    Args:
        only: the file that was asked for; its set is found, others are not looked at.

    Raises:
        CheckpointError: a file of the set is missing, or the index is damaged or names what it must not.
    """
    index = folder / _INDEX
    if only is None and (folder / _WHOLE).exists():
        return Shards(paths=(folder / _WHOLE,))
    if index.exists():
        owners = _owners(index)
        names = sorted(set(owners.values()))
        if only is None or only.name in names:
            return Shards(paths=_all_there(folder, names=names), owners=owners, index=index)
    if only is not None:
        return Shards(paths=_all_there(folder, names=_set_of(only.name)))
    names = sorted({name for path in folder.glob(f"*{SUFFIX}") for name in _set_of(path.name)})
    return Shards(paths=_all_there(folder, names=names))


def _owners(index: Path) -> Mapping[str, str]:
    file = StoredFile(index)
    if file.size > _LONGEST_INDEX:
        raise CheckpointError(f"{index} has {file.size} bytes, which no index has; download it again")
    try:
        owners = parse_object(file.read(0, size=file.size), from_pairs=unique).get("weight_map")
    except ValueError as error:
        raise CheckpointError(f"{index} is damaged ({error}); download it again") from error
    if not isinstance(owners, dict) or not owners:
        raise CheckpointError(f"{index} has no weight_map; download it again")
    for name, shard in owners.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise CheckpointError(
                f"{index} says that {name[:100]!r} is in {shard!r:.100}, which is no safetensors file of its "
                "folder; download it again from where you trust it"
            )
    return owners


def _is_plain(name: str) -> bool:
    """Whether it names a file beside the index and nothing else."""
    return name.endswith(SUFFIX) and name.isprintable() and not {"/", "\\"} & set(name) and len(name) <= 255


def _set_of(name: str) -> list[str]:
    """The names of all files of the set that a numbered one belongs to."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return [name]
    count = int(numbered["count"])
    if not 1 <= int(numbered["number"]) <= count <= _MOST_SHARDS:
        return [name]
    return [f"{numbered['name']}-{n:05d}-of-{count:05d}{SUFFIX}" for n in range(1, count + 1)]


def _all_there(folder: Path, *, names: list[str]) -> tuple[Path, ...]:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
        raise CheckpointError(
            f"{folder} lacks {', '.join(absent[:_MOST_SHOWN])}{more} of {len(names)} files; "
            "download the rest of the model"
        )
    return tuple(folder / name for name in names)
