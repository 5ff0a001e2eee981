"""Checkpoints from a model hub, through `huggingface_hub`: its endpoint, token and cache settings all apply.

Knows how to ask, to wait, to check what came, and to do without a network. Does not know other sources of models.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deployments.messages.errors import CheckpointError, ConfigError, OutriderError
from serve_app.catalog import HubModel
from serve_app.hub_cache import CachedRepo, cached_repo, is_commit, require_whole
from serve_app.hub_files import Choice, choose

type Report = Callable[[str], None]

_ASK_TIMEOUT_S = 10.0
_PAUSES_S = (1.0, 4.0)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """A repository at one commit.

    Attributes:
        sizes: of its files, 0 where the hub does not say.
        sha256: of those that the hub knows one of: large files.
    """

    commit: str
    sizes: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)


def fetch_from_hub(model: HubModel, /, *, report: Report) -> Path:
    """The GGUF file, or the folder of the safetensors files, that `model` names; from the cache if the hub is away.

    Raises:
        ConfigError: the name of the repository, of the revision or of the file is not one.
        CheckpointError: no such repository, revision or file, no access, several files to choose from, hub out of
            reach, no room, or a file that is not what it should be.
    """
    _check_names(model)
    cache = cached_repo(model.repo)
    try:
        listing = _listed(model, report=report)
    except _Unlisted as unlisted:
        return _from_cache(model, cache=cache, problem=unlisted.problem, report=report)
    choice = choose(listing.sizes, repo=model.repo, file=model.file)
    _fetch(model, cache=cache, listing=listing, choice=choice, report=report)
    return _entry(cache.snapshot(listing.commit), choice=choice)


class _Unlisted(Exception):
    """The hub did not say what it has, but the cache may."""

    def __init__(self, problem: OutriderError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _check_names(model: HubModel) -> None:
    file = model.file
    if file is not None and (not file.endswith(".gguf") or ".." in file.split("/") or file.startswith("/")):
        raise ConfigError(f"'{file}' is not a GGUF file of {model.repo}; write owner/name:file.gguf")
    if ".." in model.revision or model.revision.startswith("/"):
        raise ConfigError(f"'{model.revision}' is not a revision of {model.repo}; write owner/name@branch or @commit")


def _endpoint() -> str | None:
    """`$HF_ENDPOINT` now; the hub client reads it only once, when it is first imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _entry(folder: Path, *, choice: Choice) -> Path:
    return folder if choice.entry is None else folder / choice.entry


def _listed(model: HubModel, *, report: Report) -> _Listing:
    # Imported late, here and below: half a second that a local file need not pay.
    from huggingface_hub import HfApi

    from serve_app.hub_errors import explain, is_denial

    def ask() -> _Listing:
        info = HfApi(endpoint=_endpoint()).model_info(
            model.repo, revision=model.revision, files_metadata=True, timeout=_ASK_TIMEOUT_S
        )
        files = info.siblings or []
        if info.sha is None or not is_commit(info.sha):
            raise CheckpointError(f"the model hub does not say which commit {model.repo} is at; check HF_ENDPOINT")
        return _Listing(
            commit=info.sha,
            sizes={file.rfilename: file.size or 0 for file in files},
            sha256={file.rfilename: file.lfs.sha256 for file in files if file.lfs},
        )

    try:
        return _patiently(ask, report=report)
    except OutriderError:
        raise
    # The client lets the errors of its HTTP library through, and which library that is has changed between releases.
    except Exception as error:
        problem = explain(error, repo=model.repo, revision=model.revision)
        if is_denial(error):
            raise problem from error
        raise _Unlisted(problem) from error


def _from_cache(model: HubModel, *, cache: CachedRepo, problem: OutriderError, report: Report) -> Path:
    """What is here of `model`, if it is all there; else raises `problem`, or says what is missing."""
    commit = cache.commit(model.revision)
    known = _known_names(model, commit=commit) if commit else []
    names = known or (cache.names(commit) if commit else [])
    if not commit or not names:
        raise problem
    choice = choose(names, repo=model.repo, file=model.file)
    require_whole(cache.snapshot(commit), choice=choice, repo=model.repo)
    report(f"the model hub is out of reach or refuses; using what is here of {model.repo} (commit {commit[:8]})")
    return _entry(cache.snapshot(commit), choice=choice)


def _known_names(model: HubModel, *, commit: str) -> list[str]:
    """The files of a commit as the hub client noted them down, if it did."""
    import huggingface_hub

    # Newer than the oldest client that is supported.
    recall = getattr(huggingface_hub, "get_cached_repo_tree", None)
    try:
        return [file.path for file in recall(model.repo, revision=commit)] if recall else []
    except Exception:  # a note that is not there, or damaged
        return []


def _fetch(model: HubModel, *, cache: CachedRepo, listing: _Listing, choice: Choice, report: Report) -> None:
    """Downloads what is not here yet, weights last, and checks each file as it arrives."""
    folder = cache.snapshot(listing.commit)
    absent = [name for name in choice.files if not (folder / name).exists()]
    expected = listing.sha256 | dict(model.sha256)
    for name, right in model.sha256:
        if listing.sha256.get(name, right) != right:
            raise CheckpointError(
                f"{name} of {model.repo} has sha256 {listing.sha256[name]} on the hub, expected {right}; nothing was "
                "fetched, so check HF_ENDPOINT"
            )
    if absent:
        total = sum(listing.sizes[name] for name in absent)
        _require_room(cache.store, needed=total, repo=model.repo)
        report(f"fetching {model.repo} at {listing.commit[:8]}: {_files(len(absent))}, {_size(total)}")
    for number, name in enumerate(absent, start=1):
        _download(model, name=name, revision=listing.commit, report=report)
        _check(folder / name, expected=expected.get(name), repo=model.repo, name=name)
        report(f"fetched {number} of {len(absent)}: {name} ({_size((folder / name).stat().st_size)})")
    _note_revision(model, cache=cache, listing=listing, choice=choice, report=report)


def _note_revision(model: HubModel, *, cache: CachedRepo, listing: _Listing, choice: Choice, report: Report) -> None:
    """Lets the client note, once all is here, which commit a branch stands for; starts without a network go by that."""
    if is_commit(model.revision) or cache.commit(model.revision) == listing.commit:
        return
    smallest = min(choice.files, key=lambda name: listing.sizes[name])
    _download(model, name=smallest, revision=model.revision, report=report)


def _download(model: HubModel, *, name: str, revision: str, report: Report) -> None:
    from huggingface_hub import constants, hf_hub_download

    from serve_app.hub_errors import explain, hide_signatures

    hide_signatures()

    def download() -> None:
        hf_hub_download(model.repo, name, revision=revision, endpoint=_endpoint())

    try:
        try:
            _patiently(download, report=report)
        except Exception as error:
            if constants.HF_HUB_DISABLE_XET or "xet" not in str(error).lower():
                raise
            # A mirror that passes the hub's headers on, but has no such store behind it.
            report(f"{model.repo} cannot be fetched over xet; fetching it over plain HTTP")
            constants.HF_HUB_DISABLE_XET = True
            _patiently(download, report=report)
    except Exception as error:  # as in _listed; and a full disk
        raise explain(error, repo=model.repo, revision=model.revision) from error


def _patiently[T](action: Callable[[], T], *, report: Report) -> T:
    """What `action` returns; where the hub asks for patience, after waiting and asking again."""
    from serve_app.hub_errors import pause_before_retry

    for pause in _PAUSES_S:
        try:
            return action()
        except Exception as error:
            wait = pause_before_retry(error, default=pause)
            if wait is None:
                raise
            report(f"the model hub is busy; asking again in {wait:.0f} s")
            time.sleep(wait)
    return action()


def _require_room(store: Path, *, needed: int, repo: str) -> None:
    there = next(folder for folder in (store, *store.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise CheckpointError(
            f"{repo} takes {_size(needed)} and the disk of the hub's cache has {_size(free)} left; free some room "
            "there, or set HF_HOME to another folder"
        )


def _check(path: Path, *, expected: str | None, repo: str, name: str) -> None:
    """Compares a file that has just come with its checksum; one that is not right, or not looked at, is not kept."""
    blob = path.parent / path.readlink() if path.is_symlink() else path
    # Large files are named for their checksum in the client's cache.
    right = expected or (blob.name if _SHA256.fullmatch(blob.name) else None)
    if right is None:
        return
    found = ""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    finally:
        if found != right:
            # The file, what it is a link to, and what that is a link to in a store shared by repositories.
            for link in (path.resolve(), blob, path):
                link.unlink(missing_ok=True)
    if found != right:
        raise CheckpointError(
            f"{name} of {repo} has sha256 {found}, expected {right}; it was not kept, so try again, or check "
            "HF_ENDPOINT"
        )


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.1f} kB"
