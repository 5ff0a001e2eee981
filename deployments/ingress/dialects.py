"""The JSON of the two routes: chat completions and completions differ in names and nesting, in nothing else."""

from typing import Any, Protocol

from deployments.messages.generation import FinishReason

type Json = dict[str, Any]


class Dialect(Protocol):
    """How one route words a reply."""

    @property
    def whole(self) -> str:
        """The `object` of an answer in one piece."""

    @property
    def chunk(self) -> str:
        """The `object` of a piece of a stream."""

    def opening(self, index: int, /) -> Json | None:
        """The choice object that opens a streamed reply, where the route has one."""

    def delta(self, index: int, /, *, text: str) -> Json:
        """The choice object that adds text."""

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        """The choice object that ends a streamed reply."""

    def choice(self, index: int, /, *, text: str, reason: FinishReason) -> Json:
        """The choice object of an answer in one piece."""


class ChatDialect:
    """`POST /v1/chat/completions`."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def opening(self, index: int, /) -> Json | None:
        return self._piece(index, delta={"role": "assistant", "content": ""}, reason=None)

    def delta(self, index: int, /, *, text: str) -> Json:
        return self._piece(index, delta={"content": text}, reason=None)

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        return self._piece(index, delta={}, reason=reason)

    def choice(self, index: int, /, *, text: str, reason: FinishReason) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}

    def _piece(self, index: int, /, *, delta: Json, reason: FinishReason | None) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


class CompletionDialect:
    """`POST /v1/completions`."""

    whole = "text_completion"
    chunk = "text_completion"

    def opening(self, index: int, /) -> Json | None:
        return None

    def delta(self, index: int, /, *, text: str) -> Json:
        return self._piece(index, text=text, reason=None)

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        return self._piece(index, text="", reason=reason)

    def choice(self, index: int, /, *, text: str, reason: FinishReason) -> Json:
        return self._piece(index, text=text, reason=reason)

    def _piece(self, index: int, /, *, text: str, reason: FinishReason | None) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
