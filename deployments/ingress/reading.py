"""From the bytes of a body to a request, or to one sentence about the first thing that is wrong with it."""

from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deployments.ingress.errors import FieldError
from deployments.ingress.parameters import CHAT, COMPLETION, MESSAGE, STREAM_OPTIONS, settle, unsupported
from deployments.ingress.schemas import ChatBody, CompletionBody, GenerationBody, ProfileBody

_MAX_NAME = 80


def read_chat(body: bytes, /) -> ChatBody:
    """Raises `FieldError` for anything but a chat request this server can serve."""
    fields = settle(_json_object(body), known=CHAT)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_settled_message(message, index=index) for index, message in enumerate(messages)]
    request = _validated(ChatBody, fields=fields)
    _check_combinations(request)
    if request.top_logprobs and not request.logprobs:
        raise FieldError("top_logprobs is only allowed when logprobs is true.", "top_logprobs")
    return request


def read_completion(body: bytes, /) -> CompletionBody:
    """Raises `FieldError` for anything but a completion request this server can serve."""
    request = _validated(CompletionBody, fields=settle(_json_object(body), known=COMPLETION))
    _check_combinations(request)
    # The best of n is all of them; more candidates would need log-probabilities.
    if request.best_of not in (None, request.choices_per_prompt):
        raise unsupported("best_of")
    return request


def read_profile(body: bytes, /) -> ProfileBody:
    """Raises `FieldError` for anything but a wish for a trace; an empty body is one."""
    return _validated(ProfileBody, fields=_json_object(body) if body.strip() else {})


def _json_object(body: bytes, /) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FieldError(f"The body is not valid JSON: {error.msg}.", None, "invalid_json") from None
    if not isinstance(parsed, dict):
        raise FieldError("The body should be a JSON object.", None, "invalid_json")
    options = parsed.get("stream_options")
    if isinstance(options, dict):
        parsed["stream_options"] = settle(options, known=STREAM_OPTIONS, path="stream_options")
    return parsed


def _settled_message(message: Any, /, *, index: int) -> Any:
    if not isinstance(message, dict) or message.get("role") in ("tool", "function"):
        # The schema has the better words for these.
        return message
    return settle(message, known=MESSAGE, path=f"messages[{index}]")


def _check_combinations(request: GenerationBody, /) -> None:
    if request.stream_options is not None and not request.stream:
        raise FieldError("stream_options is only allowed when stream is true.", "stream_options")
    both = request.max_tokens is not None and request.max_completion_tokens is not None
    if both and request.max_tokens != request.max_completion_tokens:
        raise FieldError("max_tokens and max_completion_tokens differ; send one of them.", "max_tokens")
    both = request.repetition_penalty is not None and request.repeat_penalty is not None
    if both and request.repetition_penalty != request.repeat_penalty:
        raise FieldError("repetition_penalty and repeat_penalty differ; send one of them.", "repetition_penalty")


def _validated[Body: BaseModel](schema: type[Body], /, *, fields: dict[str, Any]) -> Body:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        # The client's own input is not repeated: it can be megabytes.
        raise _field_error(error.errors(include_url=False, include_input=False)[0]) from None


def _field_error(detail: ErrorDetails, /) -> FieldError:
    context = detail.get("ctx", {})
    param = _path(detail["loc"]) + context.get("suffix", "")
    match detail["type"]:
        case "missing":
            return FieldError(f"{param} is required.", param, "missing_required_parameter")
        case "extra_forbidden":
            return FieldError(f"{param} is not a parameter of this route; leave it out.", param, "unknown_parameter")
        case "unsupported_parameter":
            return FieldError(f"{param} {detail['msg']}.", param, "unsupported_parameter")
        case "too_short":
            return FieldError(f"{param} should have at least {context['min_length']} item.", param)
        case "model_type" | "dict_type":
            return FieldError(f"{param} should be a JSON object.", param)
        case _:
            return FieldError(f"{param} {detail['msg'].removeprefix('Input ')}.", param)


def _path(location: tuple[int | str, ...], /) -> str:
    """`messages[2].content`, as OpenAI writes it. The client chose some of the names: long ones are cut."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step[:_MAX_NAME]}"
    return path.removeprefix(".")
