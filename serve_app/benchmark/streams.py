"""Streams over HTTP, as a client reads them. Tokens are counted by the server's own `usage`."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from deployments.messages.errors import Unavailable

_DATA = "data: "
_DONE = "[DONE]"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request: a user's words for the chat route, or token ids for the other."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    speculate: bool

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if isinstance(self.prompt, str) else "/v1/completions"

    def body(self, *, model: str) -> dict[str, Any]:
        """The JSON to send: greedy, streamed, with usage."""
        words = isinstance(self.prompt, str)
        said = {"messages": [{"role": "user", "content": self.prompt}]} if words else {"prompt": list(self.prompt)}
        return {
            "model": model,
            **said,
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": {"enabled": self.speculate},
        }


@dataclass(frozen=True, kw_only=True)
class StreamReply:
    """What came back.

    Attributes:
        first_s: seconds from sending to the first event.
        stream_rate: tokens per second after the first one, by the server's clock; 0 for a reply of one token.
    """

    text: str
    tokens: int
    first_s: float
    stream_rate: float
    drafted: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Streams that began together; `seconds` runs until the last one ended."""

    replies: tuple[StreamReply, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.replies)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def drafted(self) -> int:
        return sum(reply.drafted for reply in self.replies)

    @property
    def accepted(self) -> int:
        return sum(reply.accepted for reply in self.replies)


def run_streams(url: str, *, model: str, asks: Sequence[Ask]) -> Batch:
    """Sends all `asks` at once and reads every reply to its end.

    Raises:
        Unavailable: the service refused one, or broke off.
    """
    return asyncio.run(_run(url, model=model, asks=asks))


async def _run(url: str, *, model: str, asks: Sequence[Ask]) -> Batch:
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        started = time.perf_counter()
        replies = await asyncio.gather(*(_ask(client, ask=ask, model=model) for ask in asks))
        return Batch(replies=tuple(replies), seconds=time.perf_counter() - started)


async def _ask(client: httpx.AsyncClient, *, ask: Ask, model: str) -> StreamReply:
    reading = _Reading()
    try:
        async with client.stream("POST", ask.path, json=ask.body(model=model)) as answer:
            if answer.status_code != httpx.codes.OK:
                said = (await answer.aread()).decode(errors="replace")
                raise Unavailable(f"the service answered {answer.status_code} to a benchmark request: {said}")
            async for line in answer.aiter_lines():
                if line.startswith(_DATA) and line != _DATA + _DONE:
                    reading.take(orjson.loads(line[len(_DATA) :]))
    except httpx.HTTPError as error:
        raise Unavailable(f"the service broke off a benchmark request ({error or type(error).__name__})") from error
    return reading.reply()


@dataclass(kw_only=True)
class _Reading:
    """A reply while it arrives."""

    started: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    pieces: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)

    def take(self, event: dict[str, Any], /) -> None:
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.started
        if "error" in event:
            raise Unavailable(f"the service ended a benchmark request with an error: {event['error']['message']}")
        for choice in event["choices"]:
            self.pieces.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings

    def reply(self) -> StreamReply:
        if self.first_s is None or not self.usage or not self.timings:
            raise Unavailable("the service ended a benchmark request before its usage and timings")
        seconds = self.timings["predicted_ms"] / 1e3
        return StreamReply(
            text="".join(self.pieces),
            tokens=self.usage["completion_tokens"],
            first_s=self.first_s,
            stream_rate=(self.timings["predicted_n"] - 1) / seconds if seconds > 0 else 0.0,
            drafted=self.timings.get("draft_n", 0),
            accepted=self.timings.get("draft_n_accepted", 0),
        )
