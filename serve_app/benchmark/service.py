"""Measurements against a running service: speed with and without speculation, first token, a drafter that hangs."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deployments.verifier.link_counters import LINKS_LIVE
from serve_app.benchmark.alternation import Effort, Spread, alternate, quotients, spread
from serve_app.benchmark.processes import halted
from serve_app.benchmark.streams import Ask, Batch, run_streams
from serve_app.local import Service

_PATIENCE_S = 15.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts of one sort, in the order in which they are used."""

    name: str
    prompts: tuple[str, ...]
    max_tokens: int

    def asks(self, *, turn: int, streams: int, speculate: bool) -> tuple[Ask, ...]:
        """The requests of one run: other prompts in every turn, the same ones whoever takes it."""
        chosen = [self.prompts[(turn * streams + i) % len(self.prompts)] for i in range(streams)]
        return tuple(Ask(prompt=prompt, max_tokens=self.max_tokens, speculate=speculate) for prompt in chosen)


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """Tokens per second of all streams together, from the first request sent to the last reply ended.

    Attributes:
        ratio: speculative over plain, round by round.
        stream_plain, stream_speculative: tokens per second of one stream, after its first token.
        acceptance: share of the drafted tokens that were accepted; 0 without drafts.
        differing: replies that were not the same both ways; anything but 0 is a defect.
    """

    workload: str
    streams: int
    tokens: int
    plain: Spread
    speculative: Spread
    ratio: Spread
    stream_plain: Spread
    stream_speculative: Spread
    acceptance: float
    differing: int


@dataclass(frozen=True, kw_only=True)
class FirstTokenResult:
    """Seconds from sending a prompt nobody has seen before to the first token's event."""

    prompt_tokens: int
    seconds: Spread


@dataclass(frozen=True, kw_only=True)
class HaltedDrafterResult:
    """Speculative requests while the drafter is halted, against plain ones.

    Attributes:
        began_live: of the halted runs, those that began with the drafter in use; the others cost no deadline.
        ratio: halted over plain, round by round; should be at least 0.97.
        drafted: tokens drafted while halted; anything but 0 means that it was not.
    """

    workload: str
    streams: int
    began_live: int
    plain: Spread
    halted: Spread
    ratio: Spread
    drafted: int
    differing: int


def measure_speed(service: Service, *, workload: Workload, streams: int, effort: Effort) -> SpeedResult:
    """Plain and speculative runs over the same prompts in turn."""
    runs = alternate(
        {
            "plain": lambda turn: _run(service, asks=workload.asks(turn=turn, streams=streams, speculate=False)),
            "speculative": lambda turn: _run(service, asks=workload.asks(turn=turn, streams=streams, speculate=True)),
        },
        effort=effort,
    )
    plain, speculative = runs["plain"], runs["speculative"]
    drafted = sum(batch.drafted for batch in speculative)
    return SpeedResult(
        workload=workload.name,
        streams=streams,
        tokens=sum(batch.tokens for batch in (*plain, *speculative)),
        plain=spread(_rates(plain)),
        speculative=spread(_rates(speculative)),
        ratio=spread(quotients(_rates(speculative), lower=_rates(plain))),
        stream_plain=spread(_stream_rates(plain)),
        stream_speculative=spread(_stream_rates(speculative)),
        acceptance=sum(batch.accepted for batch in speculative) / drafted if drafted else 0.0,
        differing=_differing(plain, others=speculative),
    )


def measure_first_token(
    service: Service, *, ids: Sequence[int], lengths: Sequence[int], effort: Effort
) -> tuple[FirstTokenResult, ...]:
    """Prompts of `lengths` tokens in turn, drawn from `ids`, no two alike."""
    generator = random.Random(0)

    def first_token(length: int, _: int) -> float:
        ask = Ask(prompt=tuple(generator.choices(ids, k=length)), max_tokens=1, speculate=False)
        return _run(service, asks=(ask,)).replies[0].first_s

    arms = {length: partial(first_token, length) for length in lengths}
    return tuple(
        FirstTokenResult(prompt_tokens=length, seconds=spread(seconds))
        for length, seconds in alternate(arms, effort=effort).items()
    )


def measure_halted_drafter(
    service: Service,
    *,
    workload: Workload,
    streams: int,
    drafters: Callable[[], Sequence[int]],
    effort: Effort,
) -> HaltedDrafterResult:
    """Plain runs, and runs that would speculate but whose drafters are halted for their length.

    Args:
        drafters: the process ids; asked each time, since a replica may have been replaced.
    """

    def ask(turn: int, speculate: bool) -> Batch:
        return _run(service, asks=workload.asks(turn=turn, streams=streams, speculate=speculate))

    def run_halted(turn: int) -> tuple[bool, Batch]:
        # Punctual rounds first: a drafter that has just come back is given up sooner, and would cost less.
        live = await_drafter(service)
        _run(service, asks=workload.asks(turn=turn, streams=1, speculate=True))
        with halted(drafters()):
            return live, ask(turn, True)

    runs = alternate({"plain": lambda turn: (False, ask(turn, False)), "halted": run_halted}, effort=effort)
    plain = tuple(batch for _, batch in runs["plain"])
    stopped = tuple(batch for _, batch in runs["halted"])
    return HaltedDrafterResult(
        workload=workload.name,
        streams=streams,
        began_live=sum(live for live, _ in runs["halted"]),
        plain=spread(_rates(plain)),
        halted=spread(_rates(stopped)),
        ratio=spread(quotients(_rates(stopped), lower=_rates(plain))),
        drafted=sum(batch.drafted for batch in stopped),
        differing=_differing(plain, others=stopped),
    )


def await_drafter(service: Service, /, *, patience_s: float = _PATIENCE_S) -> bool:
    """Waits until a verifier has a drafter in use again; says whether it came to that."""
    deadline = time.monotonic() + patience_s
    while not _links_live(service):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _links_live(service: Service) -> float:
    page = httpx.get(f"{service.url}/metrics", timeout=30.0).text
    families = (family for family in text_string_to_metric_families(page) if family.name == f"outrider_{LINKS_LIVE}")
    return sum(sample.value for family in families for sample in family.samples)


def _run(service: Service, *, asks: Sequence[Ask]) -> Batch:
    return run_streams(service.url, model=service.model, asks=asks)


def _rates(batches: Sequence[Batch]) -> tuple[float, ...]:
    return tuple(batch.tokens_per_second for batch in batches)


def _stream_rates(batches: Sequence[Batch]) -> tuple[float, ...]:
    return tuple(reply.stream_rate for batch in batches for reply in batch.replies)


def _differing(batches: Sequence[Batch], *, others: Sequence[Batch]) -> int:
    pairs = zip(batches, others, strict=True)
    return sum(a.text != b.text for one, other in pairs for a, b in zip(one.replies, other.replies, strict=True))
