"""The model's chat template: Jinja, in a sandbox, as `transformers` runs it.

Knows conversations and text, not tokens. The template comes with the model file and is not trusted: no attribute that
starts with an underscore, nothing mutable, and at most `MAX_STEPS` steps of `range` per rendering.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deployments.messages.errors import InvalidRequest, UnknownTemplate
from deployments.messages.generation import ChatTurn

MAX_STEPS = 100_000
_LONGEST_REASON = 200
_TRIAL = (ChatTurn(role="user", content="Hello"),)


class ChatTemplate:
    """A compiled template that has rendered one conversation already.

    Raises:
        UnknownTemplate: it does not compile, or cannot render a single user message.
    """

    def __init__(self, source: str, /, *, bos_text: str, eos_text: str) -> None:
        self._constants = {"bos_token": bos_text, "eos_token": eos_text, "add_generation_prompt": True}
        # A template can make Jinja and Python raise nearly anything, at compilation too (nesting, recursion, memory).
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            raise UnknownTemplate(_refusal("cannot be compiled", error=error)) from error
        try:
            self._rendered(_TRIAL)
        except Exception as error:
            raise UnknownTemplate(_refusal("cannot render a single user message", error=error)) from error

    def render(self, turns: tuple[ChatTurn, ...], /) -> str:
        """The prompt up to where the assistant speaks.

        Raises:
            InvalidRequest: the template refuses this conversation, or fails on it.
        """
        try:
            return self._rendered(turns)
        except _Refused as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {_reason(error)}", "messages"
            ) from error
        except Exception as error:
            raise InvalidRequest(
                f"the model's chat template cannot render these messages ({_reason(error)}); "
                "change their roles or their order",
                "messages",
            ) from error

    def _rendered(self, turns: tuple[ChatTurn, ...], /) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        text = self._template.render(
            self._constants, messages=messages, tools=None, documents=None, range=_Steps(left=MAX_STEPS).range
        )
        text.encode()  # an escape in the template may have made half a surrogate pair
        return text


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Steps:
    """The `range` of one rendering: nested loops share its steps, so that they cannot multiply."""

    def __init__(self, *, left: int) -> None:
        self._left = left

    def range(self, *bounds: int) -> range:
        steps = range(*bounds)
        self._left -= len(steps[: self._left + 1])  # a slice has a length even where the range is too long for one
        if self._left < 0:
            raise OverflowError(f"more than {MAX_STEPS} steps of range")
        return steps


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    del environment.globals["lipsum"]  # unbounded, and no template needs it
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _tojson
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as it is: Jinja's own filter escapes `<`, `>`, `&` and `'` for HTML, which no model was trained on."""
    return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **options})


def _refusal(what: str, /, *, error: Exception) -> str:
    where = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"the model's chat template {what}: {_reason(error)}{where}; use a model with another template"


def _reason(error: Exception, /) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
