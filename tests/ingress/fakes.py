"""The other deployments as the ingress sees them, in this process: bytes for tokens, and replies by script."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from deployments.messages.drafting import DrafterEndpoint
from deployments.messages.gates import GateReport
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    FinishReason,
    GenerateRequest,
    GenerationStatistics,
    ModelCard,
    TokenChunk,
    TokenTable,
)
from deployments.messages.metrics import MetricKind, MetricSpec

END = 256
VOCABULARY = 257
MODEL = "acme/parrot-7B"

type Step = TokenChunk | Exception | asyncio.Event
type Script = Callable[[GenerateRequest], Iterable[Step]]

STATISTICS = GenerationStatistics(
    prompt_n=3,
    cache_n=1,
    prompt_ms=6.0,
    predicted_n=5,
    predicted_ms=10.0,
    draft_kind="ngram",
    rounds=((2, 0, 0, 0), (0, 0, 0, 0), (1, 1, 0, 0), (1, 0, 0, 2)),
    declined={"no_match": 2},
)


def byte_table(*, has_chat_template: bool = True) -> TokenTable:
    """Token `i` is byte `i`; one more token, whose bytes never show, ends a reply."""
    blob = bytes(range(256)) + b"<|end|>"
    ends = (*range(1, 257), len(blob))
    return TokenTable(
        blob=blob,
        ends=ends,
        special_ids=frozenset({END}),
        end_ids=(END,),
        has_chat_template=has_chat_template,
    )


def chunks(
    text: str | bytes,
    /,
    *,
    size: int = 4,
    reason: FinishReason = FinishReason.STOP,
    statistics: GenerationStatistics = STATISTICS,
) -> list[TokenChunk]:
    """`text` in chunks of `size` bytes, and an empty chunk that ends it."""
    data = text.encode() if isinstance(text, str) else text
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [
        *(TokenChunk(token_ids=tuple(piece), statistics=statistics) for piece in pieces),
        TokenChunk(token_ids=(), finish_reason=reason, statistics=statistics),
    ]


async def until(condition: Callable[[], bool], /) -> None:
    """Waits for something that is about to happen; fails after two seconds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.002)
    pytest.fail("what was waited for did not happen")


class FakeTokenizer:
    """Bytes are the tokens. Keeps what it was asked; raises `error` if there is one."""

    def __init__(self, *, has_chat_template: bool = True) -> None:
        self.turns: list[tuple[ChatTurn, ...]] = []
        self.texts: list[str] = []
        self.error: Exception | None = None
        self.pages = ['# TYPE outrider_tokens_total counter\noutrider_tokens_total{replica="t"} 7.0\n']
        self._table = byte_table(has_chat_template=has_chat_template)

    async def encode_chat(self, turns: tuple[ChatTurn, ...], /) -> EncodedPrompt:
        self.turns.append(turns)
        return self._encoded("".join(f"{turn.role}: {turn.content}\n" for turn in turns))

    async def encode_text(self, text: str, /) -> EncodedPrompt:
        self.texts.append(text)
        return self._encoded(text)

    async def table(self) -> TokenTable:
        return self._table

    async def metrics(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.pages

    def _encoded(self, text: str, /) -> EncodedPrompt:
        if self.error is not None:
            raise self.error
        return EncodedPrompt(token_ids=tuple(text.encode()))


class FakeVerifier:
    """Replies by script, and knows how many of its streams are open."""

    def __init__(self, *, script: Script | None = None, context: int = 4096) -> None:
        self.script: Script = script or (lambda request: chunks("hello world"))
        self.requests: list[GenerateRequest] = []
        self.open = 0
        self._streams: list[AsyncGenerator[TokenChunk]] = []
        self.away: Exception | None = None
        self.hangs = False
        self.reports: list[GateReport] = []
        self.pages = ['# TYPE outrider_tokens_total counter\noutrider_tokens_total{replica="v"} 9.0\n']
        self._card = ModelCard(
            model=MODEL,
            architecture="llama",
            precision="int8",
            context=context,
            slots=8,
            created=1_700_000_000,
            draft_kind="ngram",
            max_draft=3,
        )

    def generate(self, request: GenerateRequest, /) -> AsyncGenerator[TokenChunk]:
        self.requests.append(request)
        stream = self._stream(request)
        # Kept, or the garbage collector would close what the ingress forgets to close.
        self._streams.append(stream)
        return stream

    async def _stream(self, request: GenerateRequest, /) -> AsyncGenerator[TokenChunk]:
        self.open += 1
        try:
            for step in self.script(request):
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
                    await asyncio.sleep(0)
        finally:
            self.open -= 1

    async def card(self) -> ModelCard:
        await self._reachable()
        return self._card

    async def gates(self) -> list[GateReport]:
        await self._reachable()
        return self.reports

    async def profile(self, seconds: float, /) -> bytes:
        await self._reachable()
        return f"{seconds} s".encode()

    async def metrics(self) -> list[str]:
        await self._reachable()
        return self.pages

    async def _reachable(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.away is not None:
            raise self.away


class FakeDrafter:
    def __init__(self) -> None:
        self.pages = ['# TYPE outrider_tokens_total counter\noutrider_tokens_total{replica="d"} 1.0\n']

    async def endpoints(self) -> list[DrafterEndpoint]:
        return []

    async def metrics(self) -> list[str]:
        return self.pages


class RegistryMetrics:
    """`Metrics` over a `prometheus_client` registry of its own."""

    def __init__(self, specs: Sequence[MetricSpec], /) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {spec.name: self._made(spec) for spec in specs}

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        self._labelled(name, labels=labels).inc(amount)

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        self._labelled(name, labels=labels).set(value)

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        self._labelled(name, labels=labels).observe(value)

    def exposition(self) -> str:
        return generate_latest(self.registry).decode()

    def value(self, sample: str, /, **labels: str) -> float:
        """A sample by its full name without the prefix; 0 if it was never touched."""
        return self.registry.get_sample_value(f"outrider_{sample}", labels) or 0.0

    def _labelled(self, name: str, /, *, labels: tuple[str, ...]) -> Any:
        return self._metrics[name].labels(*labels) if labels else self._metrics[name]

    def _made(self, spec: MetricSpec, /) -> Any:
        name = f"outrider_{spec.name}"
        match spec.kind:
            case MetricKind.COUNTER:
                return Counter(name, spec.help, spec.labels, registry=self.registry)
            case MetricKind.GAUGE:
                return Gauge(name, spec.help, spec.labels, registry=self.registry)
            case MetricKind.HISTOGRAM:
                return Histogram(name, spec.help, spec.labels, registry=self.registry, buckets=spec.buckets)
