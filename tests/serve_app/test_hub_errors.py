import errno
import logging

import httpx2
import pytest
from huggingface_hub.errors import DisabledRepoError, HfHubHTTPError, LocalEntryNotFoundError

from deployments.messages.errors import CheckpointError
from serve_app.hub_errors import explain, hide_signatures, pause_before_retry


def http_error(
    status: int, *, kind: type[HfHubHTTPError] = HfHubHTTPError, retry_after: str | None = None
) -> HfHubHTTPError:
    request = httpx2.Request("GET", "http://hub/lab/x")
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return kind(f"status {status}", response=httpx2.Response(status, headers=headers, request=request))


def said(error: Exception) -> str:
    sentence = explain(error, repo="lab/x", revision="main")
    assert isinstance(sentence, CheckpointError)
    assert "\n" not in str(sentence)
    return str(sentence)


def test_disabled_repository() -> None:
    assert "has disabled lab/x" in said(http_error(403, kind=DisabledRepoError))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_cache_that_cannot_be_written(number: int) -> None:
    assert "set HF_HOME to another folder" in said(OSError(number, "no"))


def test_the_cause_of_what_is_not_there() -> None:
    error = LocalEntryNotFoundError("see above")
    error.__cause__ = http_error(401)

    assert "does not accept the token" in said(error)


def test_signed_addresses_and_tokens_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    error = ValueError("cannot read 'https://cdn/x?Signature=SIGNED&Key=K' with hf_secret\nand more")

    sentence = said(error)

    assert "https://cdn/x'" in sentence
    assert not {"SIGNED", "hf_secret", "and more"} & set(sentence.replace("'", " ").split())


def test_signed_addresses_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    handler = caplog.handler
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(handler)
    try:
        hide_signatures()
        hide_signatures()
        assert len(handler.filters) == 1
        logging.getLogger("huggingface_hub.file_download").warning("from %s: cut", "https://cdn/x?Signature=SIGNED")
    finally:
        logger.removeHandler(handler)
        handler.filters.clear()

    assert "from https://cdn/x: cut" in caplog.text
    assert "SIGNED" not in caplog.text


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (http_error(503), 1.0),
        (http_error(429, retry_after="7"), 7.0),
        (http_error(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 1.0),
        (http_error(429, retry_after="86400"), None),
        (http_error(404), None),
        (ValueError("no answer at all"), None),
    ],
)
def test_patience(error: Exception, wait: float | None) -> None:
    assert pause_before_retry(error, default=1.0) == wait
