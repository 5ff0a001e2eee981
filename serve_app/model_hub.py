"""GGUF files from a model hub, through `huggingface_hub`: its endpoint, token and cache settings all apply.

Knows repositories and their files. Does not know other sources of models.
"""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from deployments.messages.errors import CheckpointError, ConfigError


def fetch_from_hub(repo: str, *, file: str | None, report: Callable[[str], None]) -> Path:
    """`file` of `repo`, or its only GGUF file; from the hub's cache on this machine when the hub is out of reach.

    Raises:
        ConfigError: the name of the repository or of the file is not one.
        CheckpointError: no such repository or file, no access, several files to choose from, or hub out of reach.
    """
    if file is not None and (not file.endswith(".gguf") or ".." in PurePosixPath(file).parts or file.startswith("/")):
        raise ConfigError(f"'{file}' is not a GGUF file of {repo}; write owner/name:file.gguf")
    names = _listed(repo, report=report)
    if file is not None and file not in names:
        raise CheckpointError(f"{repo} has no file {file}; it has {', '.join(names) or 'no .gguf file'}")
    chosen = file or _only(names, repo=repo)
    report(f"fetching {chosen} of {repo}, unless it is here already")
    return _download(repo, file=chosen)


def _endpoint() -> str | None:
    """`$HF_ENDPOINT` now; the hub client reads it only once, when it is first imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _listed(repo: str, *, report: Callable[[str], None]) -> list[str]:
    """The names of the repository's GGUF files, or of those that are on this machine when the hub does not answer."""
    # Imported late: half a second that a local file need not pay.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        info = HfApi(endpoint=_endpoint()).model_info(repo)
    except GatedRepoError as error:
        raise _gated(repo) from error
    except RepositoryNotFoundError as error:
        raise _no_such_repository(repo) from error
    except HFValidationError as error:
        raise ConfigError(f"'{repo}' is not the name of a hub repository; write owner/name") from error
    # The client lets the errors of its HTTP library through, and which library that is has changed between releases.
    except Exception as error:
        cached = _cached(repo)
        if not cached:
            raise _out_of_reach(repo, error) from error
        report(f"the model hub is out of reach; using what is here of {repo}")
        return cached
    return sorted(file.rfilename for file in info.siblings or [] if file.rfilename.endswith(".gguf"))


def _cached(repo: str) -> list[str]:
    """The GGUF files of `repo` in the hub's cache."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    repos = [entry for entry in cache.repos if entry.repo_type == "model" and entry.repo_id == repo]
    main = [revision for entry in repos for revision in entry.revisions if "main" in revision.refs]
    names = {str(file.file_path.relative_to(revision.snapshot_path)) for revision in main for file in revision.files}
    return sorted(name for name in names if name.endswith(".gguf"))


def _only(names: list[str], *, repo: str) -> str:
    match names:
        case [name]:
            return name
        case []:
            raise CheckpointError(f"{repo} has no .gguf file; choose a repository with GGUF files")
        case several:
            raise CheckpointError(
                f"{repo} has {len(several)} .gguf files; write {repo}:FILE with one of {', '.join(several)}"
            )


def _download(repo: str, *, file: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError

    try:
        return Path(hf_hub_download(repo, file, endpoint=_endpoint()))
    except GatedRepoError as error:
        raise _gated(repo) from error
    except Exception as error:  # as in _listed; and a full disk
        raise _out_of_reach(f"{repo}:{file}", error) from error


def _gated(repo: str) -> CheckpointError:
    return CheckpointError(f"{repo} is gated: accept its terms on the hub, then set HF_TOKEN to a token of yours")


def _no_such_repository(repo: str) -> CheckpointError:
    return CheckpointError(
        f"the model hub has no repository {repo} that you may read; check the name, or set HF_TOKEN if it is private"
    )


def _out_of_reach(what: str, error: BaseException) -> CheckpointError:
    reason = str(error).strip().splitlines() or [""]
    return CheckpointError(
        f"cannot fetch {what} from the model hub ({type(error).__name__}: {reason[0]}) and it is not on this machine; "
        "try again when the hub answers, or give the path of a .gguf file"
    )
