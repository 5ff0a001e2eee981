"""Every window size on its own, in this process: an engine that may use one rung only must draw the same tokens."""

from collections.abc import Iterator, Sequence
from pathlib import Path
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


def run_engine(engine: Engine, /, *, questions: Sequence[Question]) -> Replies:
    """The reply to each question, by its name."""
    parts: dict[str, list[int]] = {question.name: [] for question in questions}
    replies: dict[str, Reply] = {}
    for question in questions:
        engine.submit(question.request)
    while not engine.is_idle:
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
