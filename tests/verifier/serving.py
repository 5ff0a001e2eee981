"""An engine stepped by hand, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.messages.errors import OutriderError
from deployments.messages.generation import FinishReason, GenerateRequest, GenerationStatistics, TokenLogprob
from deployments.verifier.delivery import Delivery
from deployments.verifier.engine import Engine


class Tallies:
    """Metrics as they stand; as `messages.metrics.Metrics`."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        self.counters["/".join((name, *labels))] += int(amount)

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        self.gauges["/".join((name, *labels))] = value

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        assert value >= 0
        self.counters["/".join((name, *labels))] += 1

    def exposition(self) -> str:
        return ""


@dataclass(kw_only=True)
class Reply:
    """All that was delivered for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    statistics: GenerationStatistics = field(default_factory=GenerationStatistics)
    error: OutriderError | None = None
    chunks: int = 0

    def take(self, delivery: Delivery, /) -> None:
        assert self.finish is None, "something came after the end"
        assert self.error is None, "something came after the end"
        self.error = delivery.error
        if delivery.chunk is not None:
            self.chunks += 1
            self.tokens += delivery.chunk.token_ids
            self.logprobs += delivery.chunk.logprobs or ()
            self.finish = delivery.chunk.finish_reason
            self.statistics = delivery.chunk.statistics


def serve(engine: Engine, requests: Sequence[GenerateRequest]) -> dict[str, Reply]:
    """Runs requests to their end, together; every step leaves the scheduler whole."""
    for request in requests:
        engine.submit(request)
    replies = {request.request_id: Reply() for request in requests}
    while not engine.is_idle:
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()
    assert engine.scheduler.pages_in_use == 0
    return replies
