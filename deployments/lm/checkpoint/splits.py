"""GGUF models in several files, `NAME-00001-of-00003.gguf` and so on, as llama.cpp's `gguf-split` writes them.

The first part has the metadata; each says which it is, of how many, and how many tensors all of them hold.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from deployments.lm.checkpoint.gguf_part import GgufPart
from deployments.messages.errors import CheckpointError

_NAME = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_PARTS = 1000
_MOST_SHOWN = 8


def part_of(path: Path, /) -> tuple[str, int, int] | None:
    """The set's name, the part's number from 1 on and how many there are, as far as the file's name says."""
    match = _NAME.fullmatch(path.name)
    return (match["name"], int(match["number"]), int(match["count"])) if match else None


def all_parts(part: GgufPart, /) -> list[GgufPart]:
    """The set that a part belongs to, in order; just the file itself when it is whole.

    Raises:
        CheckpointError: parts are missing, or one belongs to another set.
    """
    count = part.number("split.count") or 1
    if count == 1:
        return [part]
    parts = [part if path == part.path else GgufPart(path) for path in _paths(part, count=count)]
    total = parts[0].number("split.tensors.count")
    for index, one in enumerate(parts):
        said = [one.number(key) for key in ("split.no", "split.count", "split.tensors.count")]
        if said != [index, count, total]:
            raise CheckpointError(f"{one.path} is not part {index + 1} of this set of {count}; download the set again")
    _check_tensors(parts, total=total)
    return parts


def _paths(part: GgufPart, *, count: int) -> list[Path]:
    number = (part.number("split.no") or 0) + 1
    named = part_of(part.path)
    if named is None or named[1:] != (number, count) or count > _MOST_PARTS:
        raise CheckpointError(
            f"{part.path} is part {number} of {count} and its name does not say so; "
            f"call the parts NAME-00001-of-{count:05d}.gguf and so on, in one folder"
        )
    paths = [part.path.with_name(f"{named[0]}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
        raise CheckpointError(
            f"{part.path} is one of {count} parts, and {', '.join(absent[:_MOST_SHOWN])}{more} "
            f"{'is' if len(absent) == 1 else 'are'} missing; put all parts into one folder"
        )
    return paths


def _check_tensors(parts: Sequence[GgufPart], *, total: int | None) -> None:
    owners: dict[str, GgufPart] = {}
    for part in parts:
        for name in part.header.tensors:
            if name in owners:
                raise CheckpointError(
                    f"{owners[name].path.name} and {part.path.name} both hold {name}; download the set again"
                )
            owners[name] = part
    if len(owners) != total:
        raise CheckpointError(
            f"the {len(parts)} parts of {parts[0].path.name} hold {len(owners)} tensors and say {total}; "
            "download the set again"
        )
