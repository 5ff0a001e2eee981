"""The request bodies this server accepts, strict: no coercion, no unknown field, no value out of range.

Knows neither the model nor the operator's limits; `planning` does.
"""

import hashlib
import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator
from pydantic_core import PydanticCustomError

from deployments.messages.generation import LEAST_REPETITION, MOST_BIASES, MOST_LOGPROBS

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_PRIORITY = 100
MAX_REPETITION = 100.0
_MAX_INT32 = 2**31 - 1

_TOKEN_ID = re.compile(r"[0-9]{1,10}")

type Prompt = str | tuple[int, ...]
type Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
type Repetition = Annotated[float, Field(ge=LEAST_REPETITION, le=MAX_REPETITION)]


def _stops(value: Any, /) -> tuple[str, ...]:
    """`stop`: null, a string, or strings. OpenAI takes 4; vLLM's and llama.cpp's clients send more."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise PydanticCustomError("bad_stop", "should be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError("bad_stop", f"should hold at most {MAX_STOPS} strings, not {len(stops)}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise PydanticCustomError("bad_stop", f"should hold strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(dict.fromkeys(stops))


def _prompts(value: Any, /) -> tuple[Prompt, ...]:
    """`prompt`: a string, strings, token ids, or lists of token ids; the order decides the choices' indices."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if _is_ids(value):
            return (tuple(value),)
        if all(isinstance(item, list) and item and _is_ids(item) for item in value):
            return tuple(tuple(item) for item in value)
    raise PydanticCustomError(
        "bad_prompt", "should be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )


def _is_ids(value: list[Any], /) -> bool:
    # `bool` is an `int` to Python, not to JSON.
    return all(type(item) is int and 0 <= item <= _MAX_INT32 for item in value)


def _content(value: Any, /) -> str:
    """A message's text. Parts are joined by line breaks, as vLLM and llama.cpp join them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("bad_content", "should be a string or a list of text parts")
    return "\n".join(_part(part, index=index) for index, part in enumerate(value))


def _part(part: Any, /, *, index: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_audio", "file", "refusal"):
        message = f"holds a part of type '{kind}', which is not supported by this server; send text parts"
        raise PydanticCustomError("unsupported_parameter", message, {"suffix": f"[{index}].type"})
    if kind != "text" or not isinstance(part.get("text"), str) or len(part) != 2:
        raise PydanticCustomError(
            "bad_content", 'should hold parts of the form {"type": "text", "text": "..."}', {"suffix": f"[{index}]"}
        )
    text: str = part["text"]
    return text


def _role(value: Any, /) -> str:
    """`developer` is the newer word for `system`; templates know the older one."""
    match value:
        case "system" | "developer":
            return "system"
        case "user" | "assistant":
            return str(value)
        case "tool" | "function":
            raise PydanticCustomError("unsupported_parameter", f"'{value}' is not supported by this server yet")
        case _:
            raise PydanticCustomError("bad_role", "should be 'system', 'developer', 'user' or 'assistant'")


def _biases(value: Any, /) -> tuple[tuple[int, float], ...]:
    """`logit_bias`: null, or token ids (names of JSON fields, hence strings) with what is added to their logits."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise PydanticCustomError("bad_bias", "should be a JSON object from token ids to numbers")
    if len(value) > MOST_BIASES:
        raise PydanticCustomError("bad_bias", f"should hold at most {MOST_BIASES} tokens, not {len(value)}")
    if not all(_TOKEN_ID.fullmatch(key) and int(key) <= _MAX_INT32 for key in value):
        raise PydanticCustomError("bad_bias", 'should have token ids as its names, such as "42"')
    if not all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values()):
        raise PydanticCustomError("bad_bias", "should hold numbers from -100 to 100")
    return tuple({int(key): float(bias) for key, bias in value.items()}.items())


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Message(_Strict):
    role: Annotated[str, PlainValidator(_role)]
    content: Annotated[str, PlainValidator(_content)]


class StreamOptions(_Strict):
    include_usage: bool | None = None


class Speculation(_Strict):
    """Our extension: what a client may say about speculation. It changes speed, never the reply."""

    enabled: bool | None = None
    max_draft: Annotated[int, Field(ge=0, le=_MAX_INT32)] | None = None


class GenerationBody(_Strict):
    """What both routes share. A null means the default, as it does to OpenAI."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_stops)] = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None
    logit_bias: Annotated[tuple[tuple[int, float], ...], PlainValidator(_biases)] = ()
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_s: Annotated[float, Field(gt=0.0)] | None = None

    @property
    def choices_per_prompt(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def repetition(self) -> float:
        """The penalty under either of its names: vLLM's and llama.cpp's."""
        return next((value for value in (self.repetition_penalty, self.repeat_penalty) if value is not None), 1.0)

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report with each token's log-probability; `None` reports neither."""
        return None

    @property
    def short_seed(self) -> int | None:
        """The seed in 32 bits: itself where it fits, else a hash, so that any 64-bit seed is reproducible."""
        if self.seed is None or 0 <= self.seed < 2**32:
            return self.seed
        digest = hashlib.blake2b(self.seed.to_bytes(8, "little", signed=True), digest_size=4).digest()
        return int.from_bytes(digest, "little")


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def alternatives(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def choices(self) -> int:
        return self.choices_per_prompt


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)]
    best_of: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def choices(self) -> int:
        return self.choices_per_prompt * len(self.prompt)


class ProfileBody(_Strict):
    """`POST /admin/profile`."""

    seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 2.0
