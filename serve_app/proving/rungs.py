"""Window sizes and uses of the cache, each on its own, in this process: the engine must draw the same tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter

import msgspec

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.messages.errors import Unavailable
from deployments.verifier.counters import ENGINE_METRICS
from deployments.verifier.drafts import DraftSource, NoDrafts
from deployments.verifier.engine import Engine
from deployments.verifier.loading import LoadedModel
from deployments.verifier.onboard import OnboardDrafts
from serve_app.metrics import ReplicaMetrics
from serve_app.proving.comparison import Replies, Reply
from serve_app.proving.report import Row, row_of
from serve_app.proving.workload import Question

# How often a window begins with one request less.
_PREEMPTED = 0.1


def rung_rows(questions: Sequence[Question], /, *, model: LoadedModel, plain: Replies, oracle: Path) -> Iterator[Row]:
    """One row for each rung and drafter, as they are done.

    Args:
        questions: all of them are in the batch together, as far as there are slots.
        oracle: a file that holds the plain sequences.
    """
    for rung in model.report.ladder.rungs:
        for kind, drafts in _sources(model, oracle=oracle):
            engine = model.engine(
                drafts=drafts, metrics=ReplicaMetrics()(ENGINE_METRICS), ladder=model.report.ladder.only(rung)
            )
            started = perf_counter()
            replies = run_engine(engine, questions=questions)
            yield row_of(
                replies,
                plain=plain,
                drafter=kind,
                company=f"rung {rung.rows}/{rung.tiles}",
                mode="mixed",
                seconds=perf_counter() - started,
            )


def cache_rows(questions: Sequence[Question], /, *, model: LoadedModel, plain: Replies, oracle: Path) -> Iterator[Row]:
    """One row for each drafter, with the prefix cache and without, while requests are preempted at random."""
    for shares in (True, False):
        using = replace(model, settings=replace(model.settings, prefix_cache=shares, reserve_tokens=1))
        for kind, drafts in _sources(model, oracle=oracle):
            engine = using.engine(drafts=drafts, metrics=ReplicaMetrics()(ENGINE_METRICS))
            started = perf_counter()
            replies = run_engine(engine, questions=questions, between=partial(_preempt_at_random, engine, Random(kind)))
            yield row_of(
                replies,
                plain=plain,
                drafter=kind,
                company="preempted" if shares else "preempted, cold",
                mode="mixed",
                seconds=perf_counter() - started,
            )


def run_engine(
    engine: Engine, /, *, questions: Sequence[Question], between: Callable[[], None] | None = None
) -> Replies:
    """The reply to each question, by its name; `between` is called before every window."""
    parts: dict[str, list[int]] = {question.name: [] for question in questions}
    replies: dict[str, Reply] = {}
    for question in questions:
        engine.submit(question.request)
    while not engine.is_idle:
        if between is not None:
            between()
        for delivery in engine.step():
            chunk = delivery.chunk
            if chunk is None:
                raise delivery.error or Unavailable("the engine gave up a request; run the proof again")
            name = delivery.request_id
            parts[name] += chunk.token_ids
            if chunk.finish_reason is not None:
                replies[name] = Reply(
                    token_ids=tuple(parts[name]), finish_reason=chunk.finish_reason, statistics=chunk.statistics
                )
    return replies


def _preempt_at_random(engine: Engine, random: Random) -> None:
    active = engine.scheduler.active
    if active and random.random() < _PREEMPTED:
        engine.scheduler.preempt(random.choice(active))


def write_oracle(path: Path, /, *, questions: Sequence[Question], plain: Replies) -> None:
    """Writes the plain sequences as the oracle drafter reads them."""
    sequences = [(*question.request.prompt_ids, *plain[question.name].token_ids) for question in questions]
    path.write_bytes(msgspec.json.encode(sequences))


def _sources(model: LoadedModel, *, oracle: Path) -> Iterator[tuple[str, DraftSource]]:
    most = model.settings.draft_k
    yield "off", NoDrafts()
    yield f"ngram {most}", OnboardDrafts(build_strategy(NgramSettings(max_k=most)))
    yield "random", OnboardDrafts(build_strategy(NoiseSettings(vocab_size=model.config.vocabulary, max_k=most)))
    yield "oracle", OnboardDrafts(build_strategy(OracleSettings(path=str(oracle), max_k=most)))
