"""Errors as HTTP clients see them: status, and the four keys of OpenAI's error object. Sends nothing itself."""

from dataclasses import dataclass

import orjson

from deployments.messages.errors import (
    ContextTooLong,
    DeadlinePassed,
    InvalidRequest,
    OutriderError,
    QueueFull,
    Unavailable,
    UnknownModel,
)


class FieldError(InvalidRequest):
    """A field of the body that is wrong, missing, unknown or not supported; `code` says which."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message, param)
        self.code = code


class BodyTooLarge(InvalidRequest):
    """The body is longer than this server reads."""


class Unauthorized(OutriderError):
    """No API key, or one that is not accepted here."""


class Forbidden(OutriderError):
    """A route that nobody may use as this server is set, or not with this key."""


class NoSuchRoute(OutriderError):
    """Nothing is served under this path."""


class MethodNotAllowed(OutriderError):
    """The path exists, the method does not; the second argument names the methods that do."""

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message, allow)
        self.message = message
        self.allow = allow

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class ErrorShape:
    """An error, ready for the wire."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> bytes:
        """The error object, with all four keys."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


def shape_of(error: Exception, /) -> ErrorShape:
    """What the client is told. Only errors raised on purpose show their words; any other is a plain 500."""
    match error:
        case InvalidRequest():
            return _invalid_request(error)
        case Unauthorized():
            challenge = (("www-authenticate", "Bearer"),)
            return ErrorShape(status=401, message=str(error), code="invalid_api_key", headers=challenge)
        case Forbidden():
            return ErrorShape(status=403, message=str(error), code="forbidden")
        case UnknownModel():
            return ErrorShape(status=404, message=str(error), param="model", code="model_not_found")
        case NoSuchRoute():
            return ErrorShape(status=404, message=str(error), code="not_found")
        case MethodNotAllowed():
            allow = (("allow", error.allow),)
            return ErrorShape(status=405, message=str(error), code="method_not_allowed", headers=allow)
        case _:
            return _server_side(error)


def _invalid_request(error: InvalidRequest, /) -> ErrorShape:
    match error:
        case BodyTooLarge():
            status, code = 413, "request_too_large"
        case ContextTooLong():
            status, code = 400, "context_length_exceeded"
        case FieldError():
            status, code = 400, error.code
        case _:
            status, code = 400, "invalid_value"
    return ErrorShape(status=status, message=str(error), param=error.param, code=code)


def _server_side(error: Exception, /) -> ErrorShape:
    match error:
        case QueueFull():
            wait = (("retry-after", str(error.retry_after_s)),)
            return ErrorShape(status=429, message=str(error), type="rate_limit_error", code="queue_full", headers=wait)
        case Unavailable():
            wait = (("retry-after", "1"),)
            code = "deadline_passed" if isinstance(error, DeadlinePassed) else "unavailable"
            return ErrorShape(status=503, message=str(error), type="server_error", code=code, headers=wait)
        case TimeoutError():
            message = "The request took longer than this server allows; ask for fewer tokens or try again later."
            return ErrorShape(status=504, message=message, type="server_error", code="timeout")
        case _:
            message = "The server failed while answering; the request can be sent again, and the log has the details."
            return ErrorShape(status=500, message=message, type="server_error", code="internal_error")
