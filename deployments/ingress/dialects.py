"""The JSON of the two routes: chat completions and completions differ in names and nesting, in nothing else."""

from collections.abc import Sequence
from typing import Any, Protocol

from deployments.ingress.scores import ScoredToken, chat_logprobs, completion_logprobs
from deployments.messages.generation import FinishReason, TokenTable

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

    def delta(self, index: int, /, *, text: str, logprobs: Json | None = None) -> Json:
        """The choice object that adds text."""

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        """The choice object that ends a streamed reply."""

    def choice(self, index: int, /, *, text: str, reason: FinishReason, logprobs: Json | None = None) -> Json:
        """The choice object of an answer in one piece."""

    def logprobs(self, tokens: Sequence[ScoredToken], /, *, table: TokenTable) -> Json:
        """What is said of how likely these tokens were."""


class ChatDialect:
    """`POST /v1/chat/completions`."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def opening(self, index: int, /) -> Json | None:
        return self._piece(index, delta={"role": "assistant", "content": ""}, reason=None)

    def delta(self, index: int, /, *, text: str, logprobs: Json | None = None) -> Json:
        return self._piece(index, delta={"content": text}, reason=None, logprobs=logprobs)

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        return self._piece(index, delta={}, reason=reason)

    def choice(self, index: int, /, *, text: str, reason: FinishReason, logprobs: Json | None = None) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ScoredToken], /, *, table: TokenTable) -> Json:
        return chat_logprobs(tokens, table=table)

    def _piece(self, index: int, /, *, delta: Json, reason: FinishReason | None, logprobs: Json | None = None) -> Json:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


class CompletionDialect:
    """`POST /v1/completions`."""

    whole = "text_completion"
    chunk = "text_completion"

    def opening(self, index: int, /) -> Json | None:
        return None

    def delta(self, index: int, /, *, text: str, logprobs: Json | None = None) -> Json:
        return self._piece(index, text=text, reason=None, logprobs=logprobs)

    def closing(self, index: int, /, *, reason: FinishReason) -> Json:
        return self._piece(index, text="", reason=reason)

    def choice(self, index: int, /, *, text: str, reason: FinishReason, logprobs: Json | None = None) -> Json:
        return self._piece(index, text=text, reason=reason, logprobs=logprobs)

    def logprobs(self, tokens: Sequence[ScoredToken], /, *, table: TokenTable) -> Json:
        return completion_logprobs(tokens, table=table)

    def _piece(self, index: int, /, *, text: str, reason: FinishReason | None, logprobs: Json | None = None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
