"""OpenAI parameters this server knows but does not support yet: refused by name, never ignored silently.

A value that asks for nothing (null, false, an empty list) is accepted, because clients send their defaults.
Names that are in no table here are left in place for the schema, which refuses what it does not know.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deployments.ingress.errors import FieldError

type Idle = Callable[[Any], bool]
"""Whether a value of a parameter asks for nothing."""


def _one_of(*values: Any) -> Idle:
    # Types are compared too, or False would pass for 0.
    return lambda value: any(type(value) is type(idle) and value == idle for idle in values)


def _any(value: Any, /) -> bool:
    return True


_NULL = _one_of(None)
_EMPTY = _one_of(None, [], {}, "")
_OFF = _one_of(None, False)

_BOTH_ROUTES: Mapping[str, Idle] = {
    "user": _any,
    "metadata": _any,
    "service_tier": _one_of(None, "auto", "default"),
    "safety_identifier": _any,
    "prompt_cache_key": _any,
    "prompt_cache_retention": _any,
}

CHAT: Mapping[str, Idle] = {
    **_BOTH_ROUTES,
    "audio": _NULL,
    "function_call": _one_of(None, "none"),
    "functions": _EMPTY,
    "modalities": _one_of(None, ["text"]),
    "moderation": _NULL,
    "parallel_tool_calls": _any,
    "prediction": _NULL,
    "reasoning_effort": _NULL,
    "response_format": _one_of(None, {"type": "text"}),
    "store": _OFF,
    "tool_choice": _one_of(None, "none"),
    "tools": _EMPTY,
    "verbosity": _one_of(None, "medium"),
    "web_search_options": _NULL,
}

COMPLETION: Mapping[str, Idle] = {
    **_BOTH_ROUTES,
    "echo": _OFF,
    "suffix": _EMPTY,
}

MESSAGE: Mapping[str, Idle] = {
    "annotations": _EMPTY,
    "audio": _NULL,
    "function_call": _NULL,
    "name": _NULL,
    "refusal": _NULL,
    "tool_call_id": _NULL,
    "tool_calls": _EMPTY,
}

STREAM_OPTIONS: Mapping[str, Idle] = {"include_obfuscation": _OFF}


def settle(body: Mapping[str, Any], /, *, known: Mapping[str, Idle], path: str = "") -> dict[str, Any]:
    """`body` without the parameters of `known`, all of which must ask for nothing.

    Args:
        path: where `body` sits in the request, for the error.

    Raises:
        FieldError: one of them asks for something.
    """
    rest: dict[str, Any] = {}
    for name, value in body.items():
        idle = known.get(name)
        if idle is None:
            rest[name] = value
        elif not idle(value):
            raise unsupported(f"{path}.{name}" if path else name)
    return rest


def unsupported(param: str, /) -> FieldError:
    """The refusal of a known parameter whose value this version does not serve."""
    return FieldError(
        f"{param} is not supported by this server with this value yet; leave it out.", param, "unsupported_parameter"
    )
