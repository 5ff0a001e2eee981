"""What is compared with llama.cpp's server: requests, figures, and the settings in which the peer is tried."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from serve_app.benchmark.run import Texts
from serve_app.benchmark.streams import Ask, Batch
from tests.bench.llama_server import Variant

STREAMS = 8
MAX_TOKENS = 128

_PLAIN: dict[str, tuple[str, ...]] = {"plain": ()}
# With their own lengths of keys and drafts: shorter ones and longer ones brought nothing. `ngram-map-k4v` does as
# `ngram-map-k`; `ngram-cache` drafts nothing without files of statistics.
_NGRAM = {kind: ("--spec-type", kind) for kind in ("ngram-simple", "ngram-map-k", "ngram-mod")}

type Threads = tuple[tuple[int, int], ...]
type Prompt = str | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FixedAsk(Ask):
    """A request for exactly `max_tokens` tokens, as Outrider is asked."""

    def body(self, *, model: str) -> dict[str, Any]:
        return super().body(model=model) | {"ignore_eos": True}


@dataclass(frozen=True, kw_only=True)
class PeerAsk(FixedAsk):
    """The same, as the peer is asked; whether it speculates was settled when it was started."""

    def body(self, *, model: str) -> dict[str, Any]:
        body = super().body(model=model) | {"cache_prompt": False}
        del body["speculation"]
        return body


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Something to read off a run.

    Attributes:
        wanted: the ratio of ours over the peer's that is asked for: at least so much of a rate, at most of a time.
    """

    name: str
    unit: str
    of: Callable[[Batch], float]
    wanted: float
    is_rate: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of work for both servers.

    Attributes:
        prompts: what is asked at once in a turn; no prompt returns within `turns` turns, so that no cache has it.
        speculate: whether our requests ask for drafts.
        variants: the settings in which the peer is tried; the first figure decides which is its best.
    """

    name: str
    prompts: Callable[[int], tuple[Prompt, ...]]
    turns: int
    max_tokens: int
    speculate: bool
    variants: tuple[Variant, ...]
    figures: tuple[Figure, ...]

    @property
    def is_crowded(self) -> bool:
        return len(self.prompts(0)) > 1

    def ours(self, turn: int, /) -> tuple[Ask, ...]:
        """The requests of a turn, as Outrider is asked."""
        return tuple(self._asked(FixedAsk, prompt=prompt) for prompt in self.prompts(turn))

    def peers(self, turn: int, /) -> tuple[Ask, ...]:
        """The same, as the peer is asked."""
        return tuple(self._asked(PeerAsk, prompt=prompt) for prompt in self.prompts(turn))

    def _asked(self, kind: type[FixedAsk], *, prompt: Prompt) -> Ask:
        return kind(prompt=prompt, max_tokens=self.max_tokens, speculate=self.speculate)


def cases(texts: Texts, /, *, cores: int) -> tuple[Case, ...]:
    """Everything that is compared, over prompts that fit; the peer is tried with one thread and with all `cores`."""
    # One core for single tokens, which memory bounds, and all of them for prompts and drafts, may be best as well.
    threads = tuple(dict.fromkeys(((1, 1), (cores, cores), (1, cores))))
    most = threads[1:2] or threads
    chat, copy = (workload.prompts for workload in texts.workloads)
    # What eight streams read, one stream must not have shown to a prefix cache before.
    many, one = chat[: len(chat) * 4 // 5], chat[len(chat) * 4 // 5 :]
    return (
        Case(
            name="chat, 1 stream, plain",
            prompts=partial(_taken, one, 1),
            turns=len(one),
            max_tokens=MAX_TOKENS,
            speculate=False,
            variants=_variants(_PLAIN, threads=threads),
            figures=(
                Figure(name="after the first token", unit="tokens/s", of=_after_first, wanted=0.6),
                Figure(name="end to end", unit="tokens/s", of=_end_to_end, wanted=0.6),
            ),
        ),
        Case(
            name="copy, 1 stream, n-gram",
            prompts=partial(_taken, copy, 1),
            turns=len(copy),
            max_tokens=MAX_TOKENS,
            speculate=True,
            variants=_variants({**_PLAIN, **_NGRAM}, threads=threads),
            figures=(
                Figure(name="after the first token", unit="tokens/s", of=_after_first, wanted=1.3),
                Figure(name="end to end", unit="tokens/s", of=_end_to_end, wanted=1.3),
            ),
        ),
        Case(
            name=f"chat, {STREAMS} streams",
            prompts=partial(_taken, many, STREAMS),
            turns=len(many) // STREAMS,
            max_tokens=MAX_TOKENS,
            speculate=True,
            variants=(
                *_variants(_PLAIN, threads=threads, parallel=STREAMS),
                *_variants(_NGRAM, threads=most, parallel=STREAMS),
            ),
            figures=(Figure(name="end to end", unit="tokens/s", of=_end_to_end, wanted=1.6),),
        ),
        *(_first_token(texts.ids, length=length, threads=threads) for length in (128, 512)),
    )


def _first_token(ids: tuple[int, ...], *, length: int, threads: Threads) -> Case:
    def prompts(turn: int) -> tuple[Prompt, ...]:
        return (tuple(random.Random(f"{length} {turn}").choices(ids, k=length)),)

    return Case(
        name=f"{length}-token prompt",
        prompts=prompts,
        turns=1000,
        max_tokens=1,
        speculate=False,
        variants=_variants(_PLAIN, threads=threads),
        figures=(Figure(name="first token", unit="s", of=_first, wanted=0.5, is_rate=False),),
    )


def _variants(
    speculations: Mapping[str, tuple[str, ...]], *, threads: Threads, parallel: int = 1
) -> tuple[Variant, ...]:
    return tuple(
        Variant(threads=t, batch_threads=tb, speculation=name, options=options, parallel=parallel)
        for name, options in speculations.items()
        for t, tb in threads
    )


def _taken(prompts: tuple[str, ...], streams: int, turn: int) -> tuple[Prompt, ...]:
    return tuple(prompts[(turn * streams + i) % len(prompts)] for i in range(streams))


def _after_first(batch: Batch) -> float:
    """By the client's clock, which is the same for both; the servers' own start and stop at different places."""
    return (batch.tokens - 1) / (batch.seconds - batch.replies[0].first_s)


def _end_to_end(batch: Batch) -> float:
    return batch.tokens_per_second


def _first(batch: Batch) -> float:
    return batch.replies[0].first_s
