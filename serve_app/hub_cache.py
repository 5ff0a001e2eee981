"""What the hub client's cache on this machine holds of a repository.

Knows the cache's published layout (refs, snapshots, blobs) and asks nobody. Does not know what the files are for.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployments.messages.errors import CheckpointError
from serve_app.hub_files import CONFIG, INDEX, VOCABULARIES, Choice, part_names, shown

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class CachedRepo:
    """One repository's place in the cache.

    Attributes:
        store: its folder, which need not exist.
    """

    store: Path

    @property
    def exists(self) -> bool:
        return (self.store / "snapshots").is_dir()

    def snapshot(self, commit: str, /) -> Path:
        """The folder of one commit's files, which need not exist."""
        return self.store / "snapshots" / commit

    def commit(self, revision: str, /) -> str | None:
        """The commit that a branch or tag stood for when it was last fetched whole."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            return (self.store / "refs" / revision).read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def names(self, commit: str, /) -> list[str]:
        """The commit's files that are here."""
        folder = self.snapshot(commit)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def cached_repo(repo: str, /) -> CachedRepo:
    """Where the hub client keeps `repo`."""
    from huggingface_hub import constants

    return CachedRepo(store=Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}")


def is_commit(revision: str, /) -> bool:
    """Whether a revision is a commit, whose files never change."""
    return _COMMIT.fullmatch(revision) is not None


def require_whole(folder: Path, /, *, choice: Choice, repo: str) -> None:
    """Raises `CheckpointError` when a file of the checkpoint is not in `folder`; asks nobody but the files there."""
    absent = sorted({name for name in _expected(folder, choice=choice) if not (folder / name).is_file()})
    if choice.entry is None and not any((folder / name).is_file() for name in VOCABULARIES):
        absent.append("tokenizer.json")
    if absent:
        raise CheckpointError(
            f"only a part of {repo} is on this machine ({len(absent)} of its files are missing: {shown(absent)}) and "
            "the model hub is out of reach; run it once with a network, which fetches the rest"
        )


def _expected(folder: Path, *, choice: Choice) -> Iterator[str]:
    yield from choice.files
    if choice.entry is None:
        yield CONFIG
    for name in choice.files:
        yield from part_names(name)
        if name.endswith(INDEX):
            yield from _indexed(folder / name)


def _indexed(index: Path) -> list[str]:
    """The files that an index names; none if it is damaged, which those who open the checkpoint find out."""
    try:
        weights = json.loads(index.read_bytes())["weight_map"]
        return [name for name in weights.values() if isinstance(name, str)]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
