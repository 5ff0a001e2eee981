"""What the hub client raises, as one sentence that says what to do. Shows no token and no signed address."""

import errno
import logging
import os
import re

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from deployments.messages.errors import CheckpointError, ConfigError, OutriderError

_TRY_LATER = frozenset({408, 429, 500, 502, 503, 504})
_MOST_PATIENCE_S = 120.0
_QUERY = re.compile(r"\?[^\s'\"]*[^\s'\":]")


def explain(error: Exception, /, *, repo: str, revision: str) -> OutriderError:
    """`error` in our own words."""
    match error:
        case GatedRepoError():
            return CheckpointError(
                f"{repo} is gated: accept its terms on the hub, then set HF_TOKEN to a token of yours"
            )
        case DisabledRepoError():
            return CheckpointError(f"the model hub has disabled {repo}; choose another repository")
        case RepositoryNotFoundError():
            return CheckpointError(
                f"the model hub has no repository {repo} that you may read; check the name, or set HF_TOKEN if it is "
                "private"
            )
        case RevisionNotFoundError():
            return CheckpointError(f"{repo} has no revision {revision}; check it, or leave out @{revision}")
        case HFValidationError():
            return ConfigError(f"'{repo}' is not the name of a hub repository; write owner/name")
        case OfflineModeIsEnabled():
            return CheckpointError(
                f"{repo} is not on this machine and HF_HUB_OFFLINE forbids to fetch it; run once without HF_HUB_OFFLINE"
            )
        case LocalEntryNotFoundError() if isinstance(error.__cause__, Exception):
            return explain(error.__cause__, repo=repo, revision=revision)
        case EntryNotFoundError():
            return CheckpointError(f"{repo} lists a file at {revision} that the hub then does not have; try again")
        case HfHubHTTPError():
            return _refused(error, repo=repo)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
            return CheckpointError(
                f"cannot write {repo} to the hub's cache ({os.strerror(error.errno)}); free some room there, or set "
                "HF_HOME to another folder"
            )
    return _out_of_reach(error, repo=repo)


def hide_signatures() -> None:
    """Takes signatures out of the addresses in the client's own log; each lets whoever reads it fetch the file."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(seen, _Unsigned) for seen in handler.filters):
            handler.addFilter(_Unsigned())


class _Unsigned(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _QUERY.sub("", record.getMessage()), ()
        return True


def is_denial(error: Exception, /) -> bool:
    """Whether the hub answered and the answer will stay the same, so that what is here must not stand in for it."""
    return isinstance(error, RevisionNotFoundError | HFValidationError)


def pause_before_retry(error: Exception, /, *, default: float) -> float | None:
    """Seconds to wait before asking again: the hub's own wish if it has one; `None` when asking again is no use."""
    if not isinstance(error, HfHubHTTPError) or error.response.status_code not in _TRY_LATER:
        return None
    wish = error.response.headers.get("Retry-After", "")
    wait = float(wish) if wish.isdecimal() else default
    return wait if wait <= _MOST_PATIENCE_S else None


def _refused(error: HfHubHTTPError, *, repo: str) -> CheckpointError:
    status = error.response.status_code
    if status == 401:
        return CheckpointError(f"the model hub does not accept the token in HF_TOKEN for {repo}; set another, or none")
    if status == 403:
        return CheckpointError(f"the token in HF_TOKEN may not read {repo}; set one that may")
    if status in _TRY_LATER:
        wish = error.response.headers.get("Retry-After", "")
        when = f"in {wish} s" if wish.isdecimal() else "later"
        return CheckpointError(
            f"the model hub does not serve {repo} now (status {status}) and it is not on this machine; try again {when}"
        )
    return _out_of_reach(error, repo=repo)


def _out_of_reach(error: Exception, *, repo: str) -> CheckpointError:
    lines = str(error).strip().splitlines() or [""]
    reason = _QUERY.sub("", lines[0])
    token = os.environ.get("HF_TOKEN", "").strip()
    if token:
        reason = reason.replace(token, "***")
    return CheckpointError(
        f"cannot fetch {repo} from the model hub ({type(error).__name__}: {reason}) and it is not on this machine; "
        "try again when the hub answers, or give the path of a file or folder"
    )
