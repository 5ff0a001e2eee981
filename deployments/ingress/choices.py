"""Generates all choices of one request at once and turns their tokens into text. Knows no HTTP.

Each choice is one task that owns one stream of the verifier. Whatever ends a task - the reply's end, a stop string, an
error elsewhere, a client that left - closes its stream, and the verifier frees the slot within one window.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Self

from deployments.ingress.decoding import IncrementalDecoder, StopStrings
from deployments.ingress.planning import Plan
from deployments.ingress.scores import ScoredToken
from deployments.messages.errors import Unavailable
from deployments.messages.generation import (
    FinishReason,
    GenerateRequest,
    GenerationStatistics,
    TokenChunk,
    TokenTable,
)
from deployments.messages.ports import VerifierPort


@dataclass(frozen=True, kw_only=True)
class ChoiceEvent:
    """What one chunk of the verifier added to one choice.

    Attributes:
        tokens: how many tokens of the chunk count; those after a stop string do not.
        finish_reason: set on the last event only.
        stopped: a stop string ended the reply.
        scores: the tokens that count with their log-probabilities, where the request asked for them.
    """

    index: int
    text: str
    tokens: int
    statistics: GenerationStatistics
    finish_reason: FinishReason | None = None
    stopped: bool = False
    scores: tuple[ScoredToken, ...] = ()


class ReplyText:
    """The text of one choice, as its chunks arrive.

    Tokens are taken one by one: where a reply stops, and how many tokens it counts, must not depend on how many
    of them a window happened to accept.

    Args:
        min_tokens: a stop string that one of the first so many tokens completes is text like any other, as to vLLM.
    """

    def __init__(self, *, index: int, table: TokenTable, stops: tuple[str, ...], min_tokens: int = 0) -> None:
        self._index = index
        self._min_tokens = min_tokens
        self._tokens = 0
        self._characters = 0
        self._decoder = IncrementalDecoder(table=table)
        self._stops = StopStrings(stops=stops)

    def take(self, chunk: TokenChunk, /) -> ChoiceEvent:
        """What a chunk adds to the text: nothing past a stop string, and the reason when the reply ends."""
        pieces: list[str] = []
        scores: list[ScoredToken] = []
        before = self._tokens
        for place, token_id in enumerate(chunk.token_ids):
            self._tokens += 1
            if chunk.logprobs is not None:
                scores.append(ScoredToken(token_id=token_id, offset=self._characters, score=chunk.logprobs[place]))
            text = self._decoder.decode(token_id)
            self._characters += len(text)
            pieces.append(self._stops.feed(text, may_end=self._tokens > self._min_tokens))
            if self._stops.matched:
                break
        finish_reason = chunk.finish_reason
        if finish_reason is not None and not self._stops.matched:
            pieces.append(self._stops.feed(self._decoder.flush()))
            pieces.append(self._stops.flush())
        return ChoiceEvent(
            index=self._index,
            text="".join(pieces),
            tokens=self._tokens - before,
            statistics=chunk.statistics,
            finish_reason=FinishReason.STOP if self._stops.matched else finish_reason,
            stopped=self._stops.matched,
            scores=tuple(scores),
        )


class Choices:
    """The choices of one plan while they are generated. Leaving the context cancels what still runs."""

    def __init__(self, *, plan: Plan, verifier: VerifierPort) -> None:
        self._plan = plan
        self._verifier = verifier
        self._queue: asyncio.Queue[ChoiceEvent | Exception] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        requests = self._plan.requests
        self._tasks = [asyncio.create_task(self._run(request, index=i)) for i, request in enumerate(requests)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def events(self) -> AsyncIterator[ChoiceEvent]:
        """All events, as they come; raises the first error of any choice."""
        unfinished = len(self._tasks)
        while unfinished:
            event = await self._queue.get()
            if isinstance(event, Exception):
                raise event
            unfinished -= event.finish_reason is not None
            yield event

    async def _run(self, request: GenerateRequest, /, *, index: int) -> None:
        try:
            await self._generate(request, index=index)
        except Exception as error:
            self._queue.put_nowait(error)
        except asyncio.CancelledError:
            # Also when a stream was cancelled from its far end: nobody may wait for this choice any longer.
            self._queue.put_nowait(Unavailable("The reply was cut off; send the request again."))
            raise

    async def _generate(self, request: GenerateRequest, /, *, index: int) -> None:
        reply = ReplyText(
            index=index, table=self._plan.facts.table, stops=self._plan.stops, min_tokens=request.min_tokens
        )
        stream = self._verifier.generate(request)
        try:
            async for chunk in stream:
                event = reply.take(chunk)
                self._queue.put_nowait(event)
                if event.finish_reason is not None:
                    return
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        raise Unavailable("The verifier ended the reply early; send the request again.")
