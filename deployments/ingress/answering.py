"""Sends a reply as it is generated, or in one piece, and counts what it cost. Knows events and JSON, not the verifier.

`timings` and `metrics` belong to one choice. A reply in one piece carries them at the top when it has one choice, and
in each choice object, with null at the top, when it has several. In a stream each finish chunk carries its choice's.
The usage chunk repeats `metrics` of a single choice, where vLLM's clients look for it.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec
import orjson

from deployments.ingress.choices import ChoiceEvent
from deployments.ingress.counters import Counters
from deployments.ingress.dialects import Dialect, Json
from deployments.ingress.exchange import Exchange
from deployments.ingress.planning import Plan
from deployments.ingress.scores import ScoredToken
from deployments.ingress.statistics import reply_metrics, timings
from deployments.messages.generation import FinishReason, GenerationStatistics

_DONE = b"[DONE]"


@dataclass(kw_only=True)
class _Reply:
    """One choice so far."""

    pieces: list[str] = field(default_factory=list)
    scores: list[ScoredToken] = field(default_factory=list)
    tokens: int = 0
    reason: FinishReason = FinishReason.STOP
    statistics: GenerationStatistics = field(default_factory=GenerationStatistics)
    last_at: float | None = None


class Answer:
    """One answer on its way to one client."""

    def __init__(self, *, plan: Plan, dialect: Dialect, exchange: Exchange, counters: Counters, started: float) -> None:
        self._plan = plan
        self._dialect = dialect
        self._exchange = exchange
        self._counters = counters
        self._started = started
        self._replies = [_Reply() for _ in plan.requests]

    async def in_one_piece(self, events: AsyncIterator[ChoiceEvent], /) -> None:
        """Waits for all choices and sends them together."""
        async for event in events:
            self._count(event)
            self._replies[event.index].pieces.append(event.text)
            self._replies[event.index].scores.extend(event.scores)
        await self._exchange.respond_json(self._whole())

    async def streamed(self, events: AsyncIterator[ChoiceEvent], /, *, with_usage: bool) -> None:
        """Sends text as it comes.

        The stream begins with the first event and not before, so that a refusal is still a status and not a frame.
        """
        opened = False
        async for event in events:
            if not opened:
                await self._open(with_usage=with_usage)
                opened = True
            self._count(event)
            if event.text or event.scores:
                logprobs = self._logprobs(event.scores) if event.scores else None
                delta = self._dialect.delta(event.index, text=event.text, logprobs=logprobs)
                await self._send_choice(delta, with_usage=with_usage)
            if event.finish_reason is not None:
                await self._close(event.index, with_usage=with_usage)
        if with_usage:
            single = {"metrics": self._metrics(0)} if len(self._replies) == 1 else {}
            await self._send({"choices": [], "usage": self._usage(), **single})
        await self._exchange.event(_DONE)
        await self._exchange.end_events()

    async def _open(self, *, with_usage: bool) -> None:
        await self._exchange.begin_events()
        for index in range(len(self._replies)):
            opening = self._dialect.opening(index)
            if opening is not None:
                await self._send_choice(opening, with_usage=with_usage)

    async def _close(self, index: int, /, *, with_usage: bool) -> None:
        reply = self._replies[index]
        closing = self._dialect.closing(index, reason=reply.reason)
        statistics = {"timings": timings(reply.statistics), "metrics": self._metrics(index)}
        usage = {"usage": None} if with_usage else {}
        await self._send({"choices": [closing], **usage, **statistics})

    async def _send_choice(self, choice: Json, /, *, with_usage: bool) -> None:
        await self._send({"choices": [choice], "usage": None} if with_usage else {"choices": [choice]})

    async def _send(self, fields: Json, /) -> None:
        await self._exchange.event(orjson.dumps({**self._head(self._dialect.chunk), **fields}))

    def _whole(self) -> Json:
        several = len(self._replies) > 1
        choices = []
        for index, reply in enumerate(self._replies):
            asked = self._plan.requests[index].logprobs is not None
            choice = self._dialect.choice(
                index,
                text="".join(reply.pieces),
                reason=reply.reason,
                logprobs=self._logprobs(reply.scores) if asked else None,
            )
            own = {"timings": timings(reply.statistics), "metrics": self._metrics(index)} if several else {}
            choices.append({**choice, **own})
        return {
            **self._head(self._dialect.whole),
            "choices": choices,
            "usage": self._usage(),
            "timings": None if several else timings(self._replies[0].statistics),
            "metrics": None if several else self._metrics(0),
        }

    def _head(self, kind: str, /) -> Json:
        plan = self._plan
        return {"id": plan.reply_id, "object": kind, "created": plan.created, "model": plan.facts.model}

    def _logprobs(self, scores: Sequence[ScoredToken], /) -> Json:
        return self._dialect.logprobs(scores, table=self._plan.facts.table)

    def _metrics(self, index: int, /) -> Json:
        return reply_metrics(self._replies[index].statistics, max_draft=self._plan.max_draft)

    def _usage(self) -> Json:
        """Drafts are not OpenAI's prediction tokens (those are the client's own, and billed), so both read 0."""
        prompt = self._plan.prompt_tokens
        cached = sum(self._replies[index].statistics.cache_n for index in self._plan.prompt_starts)
        completion = sum(reply.tokens for reply in self._replies)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    def _count(self, event: ChoiceEvent, /) -> None:
        reply = self._replies[event.index]
        reply.tokens += event.tokens
        # A stop string may end the reply inside a chunk: what came after it was not part of the reply.
        reply.statistics = msgspec.structs.replace(event.statistics, predicted_n=reply.tokens)
        if event.finish_reason is not None:
            reply.reason = event.finish_reason
        if event.stopped:
            self._counters.stop_string_hit()
        if not event.tokens:
            return
        self._counters.completion_tokens(event.tokens)
        now = time.perf_counter()
        if reply.last_at is not None:
            self._counters.later_tokens(tokens=event.tokens, seconds=now - reply.last_at)
        elif all(other.last_at is None for other in self._replies):
            self._counters.first_token(now - self._started)
        reply.last_at = now
