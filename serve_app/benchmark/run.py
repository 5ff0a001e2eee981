"""The benchmark from beginning to end: what is measured, in which order, and how long each part may take."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from deployments.messages.errors import ConfigError
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.deployment import TokenizerServer
from deployments.verifier.loading import LoadedModel, load_model
from serve_app.benchmark.alternation import Effort
from serve_app.benchmark.draws import measure_draws
from serve_app.benchmark.exchange import measure_exchange, measure_wait
from serve_app.benchmark.host import measure_host
from serve_app.benchmark.machine import machine_facts
from serve_app.benchmark.processes import is_supported, measure_idle, replicas
from serve_app.benchmark.report import ProcessReport, Report, ServiceReport, Subject
from serve_app.benchmark.service import (
    Workload,
    await_drafter,
    measure_first_token,
    measure_halted_drafter,
    measure_speed,
)
from serve_app.benchmark.windows import measure_windows
from serve_app.config import AppConfig
from serve_app.local import Service, serving
from serve_app.metrics import ReplicaMetrics
from serve_app.model_fetch import resolve_model
from serve_app.prompts import load_prompts

type Say = Callable[[str], None]

_WORKLOADS = {"chat": "mt_bench", "copy": "copy"}
_PROMPT_LENGTHS = (128, 512)
_CONTEXTS = (512, 2048)


@dataclass(frozen=True, kw_only=True)
class Efforts:
    """How much of each is done.

    Attributes:
        max_tokens: length of the replies.
        streams: by the number of streams.
        halted: runs with a halted drafter.
        host_windows, exchange_rounds: how many are timed.
    """

    max_tokens: int
    streams: Mapping[int, Effort]
    halted: Effort
    first_token: Effort
    windows: Effort
    draws: Effort
    host_windows: int
    exchange_rounds: int
    idle_s: float


FULL = Efforts(
    max_tokens=128,
    streams={1: Effort(rounds=16, seconds=40, least=3), 8: Effort(rounds=8, seconds=70, least=3)},
    halted=Effort(rounds=8, seconds=90, least=3),
    first_token=Effort(rounds=9, seconds=30, least=3),
    windows=Effort(rounds=15, seconds=45, least=3),
    draws=Effort(rounds=15, seconds=10, least=3),
    host_windows=100,
    exchange_rounds=400,
    idle_s=10.0,
)

# Eight streams at once read a thousand prompt tokens first: a round that does not count would cost as much as one that
# does, and the runs with one stream have warmed everything already.
QUICK = Efforts(
    max_tokens=32,
    streams={1: Effort(rounds=3, seconds=5), 8: Effort(rounds=2, seconds=8, least=1, warm_ups=0)},
    halted=Effort(rounds=2, seconds=8, least=1, warm_ups=0),
    first_token=Effort(rounds=3, seconds=5),
    windows=Effort(rounds=5, seconds=5),
    draws=Effort(rounds=5, seconds=1),
    host_windows=20,
    exchange_rounds=100,
    idle_s=2.0,
)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What the model is given: prompts that fit its context, and one long text as token ids."""

    workloads: tuple[Workload, ...]
    ids: tuple[int, ...]


def run_benchmark(config: AppConfig, *, efforts: Efforts, say: Say) -> Report:
    """Measures the service first and the process afterwards, so that only one of them holds the model.

    Args:
        config: `model` is a path, and the drafter is not `off`.
    """
    started = time.perf_counter()
    say = _with_clock(say)
    machine = machine_facts()
    texts = read_texts(config, max_tokens=efforts.max_tokens)
    say("starting the service")
    with serving(config, port=0, quiet=True) as service:
        over_http = measure_service(service, config=config, texts=texts, efforts=efforts, say=say)
    say("loading the model into this process")
    model = load_model(config.verifier_settings().model, progress=lambda _: None)
    in_process = measure_process(model, ids=texts.ids, efforts=efforts, say=say)
    return Report(
        machine=machine,
        subject=Subject(
            model=model.name,
            precision=model.settings.precision.value,
            slots=model.settings.slots,
            context=model.settings.context,
            draft_k=model.settings.draft_k,
            is_quick=efforts == QUICK,
        ),
        service=over_http,
        process=in_process,
        seconds=time.perf_counter() - started,
    )


def measure_service(service: Service, *, config: AppConfig, texts: Texts, efforts: Efforts, say: Say) -> ServiceReport:
    """Everything that needs the running graph; this process is the one that started it."""
    root = os.getpid()
    await_drafter(service)
    speeds = []
    for workload in texts.workloads:
        for streams, effort in efforts.streams.items():
            say(f"tokens per second: {workload.name}, {streams} at once")
            speeds.append(measure_speed(service, workload=workload, streams=streams, effort=effort))
    say("time to first token")
    lengths = [length for length in _PROMPT_LENGTHS if length < config.verifier.context]
    first_tokens = measure_first_token(service, ids=texts.ids, lengths=lengths, effort=efforts.first_token)
    halted = idle = None
    if is_supported():
        say("tokens per second while the drafter is halted")
        halted = measure_halted_drafter(
            service,
            workload=texts.workloads[-1],
            streams=max(efforts.streams),
            drafters=lambda: replicas("drafter", root=root),
            effort=efforts.halted,
        )
        say("what the idle service uses")
        idle = measure_idle(root=root, seconds=efforts.idle_s)
    return ServiceReport(speeds=tuple(speeds), first_tokens=first_tokens, halted_drafter=halted, idle=idle)


def measure_process(model: LoadedModel, *, ids: tuple[int, ...], efforts: Efforts, say: Say) -> ProcessReport:
    """Everything that is measured without Ray."""
    say("windows, rung by rung")
    windows = measure_windows(model, contexts=_CONTEXTS, effort=efforts.windows)
    say("samplers")
    draws = measure_draws(model, ids=ids, context=_CONTEXTS[0], effort=efforts.draws)
    say("host time")
    host = measure_host(model, ids=ids, windows=efforts.host_windows)
    say("exchange with a drafter")
    exchange = measure_exchange(
        ids, requests=model.settings.slots, draft_k=max(model.settings.draft_k, 1), rounds=efforts.exchange_rounds
    )
    wait = measure_wait(model, ids=ids, windows=efforts.host_windows)
    return ProcessReport(windows=windows, draws=draws, host=host, exchange=exchange, wait=wait)


def read_texts(config: AppConfig, *, max_tokens: int) -> Texts:
    """The prompt sets, without what does not fit.

    Raises:
        ConfigError: no prompt of a set fits.
    """
    tokenizer = TokenizerServer(model=config.model, locate=_locate, metrics=ReplicaMetrics())
    room = config.verifier.context - max_tokens
    encoded = {name: asyncio.run(_encode(tokenizer, texts=_texts(name))) for name in _WORKLOADS}
    workloads = []
    for name, prompts in encoded.items():
        fitting = tuple(text for text, ids in prompts.items() if len(ids) <= room)
        if not fitting:
            raise ConfigError(f"no {name} prompt fits a context of {config.verifier.context}; raise --ctx")
        workloads.append(Workload(name=name, prompts=fitting, max_tokens=max_tokens))
    return Texts(workloads=tuple(workloads), ids=tuple(chain.from_iterable(encoded["chat"].values())))


def _with_clock(say: Say) -> Say:
    started = time.perf_counter()
    return lambda text: say(f"{time.perf_counter() - started:5.0f} s  {text}")


def _texts(name: str) -> list[str]:
    """The prompts of a set, one of each category in turn, so that few of them are already a mixture."""
    places: dict[str, int] = {}
    ordered = []
    for number, prompt in enumerate(load_prompts(_WORKLOADS[name])):
        place = places[prompt.category] = places.get(prompt.category, -1) + 1
        ordered.append((place, number, prompt.text))
    return [text for _, _, text in sorted(ordered)]


async def _encode(tokenizer: TokenizerServer, *, texts: list[str]) -> dict[str, tuple[int, ...]]:
    turns = [(ChatTurn(role="user", content=text),) for text in texts]
    return {text: (await tokenizer.encode_chat(turn)).token_ids for text, turn in zip(texts, turns, strict=True)}


def _locate(model: str, /) -> Path:
    return resolve_model(model)
