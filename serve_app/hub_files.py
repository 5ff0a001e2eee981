"""Which of a repository's files make up a checkpoint. Knows file names; asks nobody and opens nothing."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from deployments.messages.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = ".safetensors"
INDEX = "model.safetensors.index.json"

# What is read beside the weights. A tokenizer is in one of several of these, depending on its age.
BESIDE_WEIGHTS = frozenset(
    {
        CONFIG,
        INDEX,
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    }
)
VOCABULARIES = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json"})

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf|\.safetensors)")
# Beside the network, repositories of GGUF files keep the projector of its image encoder.
_NO_NETWORK = "mmproj"
# The same weights once more in their makers' layout, and weights to be added to those of another repository.
_OTHER_WEIGHTS = ("consolidated", "adapter_")
_WHOLE = "model.safetensors"
_MOST_SHOWN = 16
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The files of one checkpoint.

    Attributes:
        files: what to fetch; the weights come last, so that a folder that has them has everything.
        entry: the file to open; `None` opens the folder.
    """

    files: tuple[str, ...]
    entry: str | None


def part_names(name: str, /) -> tuple[str, ...]:
    """All files of the set that `name` is a part of; `name` alone when it is none."""
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{n:05}-of-{count:05}{match['ending']}" for n in range(1, count + 1))


def choose(names: Collection[str], /, *, repo: str, file: str | None) -> Choice:
    """`file` with the rest of its set, or what is there to run when no file is named.

    Raises:
        CheckpointError: there is no such file, nothing to run, or more than one thing.
    """
    if file is not None:
        if file not in names:
            has = shown(_first_parts(names)) or "no .gguf file"
            raise CheckpointError(f"{repo} has no file {file}; it has {has}")
        return _gguf(file, names=names, repo=repo)
    if CONFIG in names and (weights := _root_weights(names)):
        unused = {INDEX} if weights == [_WHOLE] else set()
        beside = sorted(BESIDE_WEIGHTS.intersection(names) - unused)
        return Choice(files=(*beside, *weights), entry=None)
    return _gguf(_only(_first_parts(names), names=names, repo=repo), names=names, repo=repo)


def shown(names: Sequence[str], /) -> str:
    """As many of the names as a sentence holds."""
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(f"{name:.200}" for name in names[:_MOST_SHOWN]) + more


def _root_weights(names: Collection[str]) -> list[str]:
    """The safetensors files of the repository's root, in the order in which `open_checkpoint` would look for them."""
    if _WHOLE in names:
        return [_WHOLE]
    found = (name for name in names if name.endswith(WEIGHTS) and "/" not in name)
    return sorted(name for name in found if not name.startswith(_OTHER_WEIGHTS))


def _first_parts(names: Iterable[str]) -> list[str]:
    """The GGUF files that can be opened: whole ones, and the first of each set."""
    found = [name for name in names if name.endswith(".gguf") and name == part_names(name)[0]]
    return sorted(name for name in found if not PurePosixPath(name).name.startswith(_NO_NETWORK))


def _gguf(file: str, *, names: Collection[str], repo: str) -> Choice:
    parts = part_names(file)
    absent = [part for part in parts if part not in names]
    if absent:
        raise CheckpointError(f"{repo} has only a part of {parts[0]}: {shown(absent)} is missing")
    return Choice(files=parts, entry=parts[0])


def _only(found: list[str], *, names: Collection[str], repo: str) -> str:
    match found:
        case [name]:
            return name
        case []:
            pickled = any(name.endswith(_PICKLED) for name in names)
            why = ", and pickled weights can run programs, so they are never read" if pickled else ""
            raise CheckpointError(
                f"{repo} has neither a .gguf file nor {CONFIG} with *{WEIGHTS}{why}; choose a repository that has"
            )
        case several:
            raise CheckpointError(
                f"{repo} has {len(several)} .gguf files; write {repo}:FILE with one of {shown(several)}"
            )
