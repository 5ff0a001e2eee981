"""Is speculation exact here? Replies with every drafter, and on every window size, against plain ones.

Everything runs on the executables that serve. The plain replies come one at a time, without a cache of prefixes. What
is compared with them runs in a full batch, and some of it alone: the fewer share the rows for drafts, the longer they
are. Knows no keys and no verdicts.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.verifier.drafts import DraftSource, NoDrafts
from deployments.verifier.loading import LoadedModel
from deployments.verifier.onboard import OnboardDrafts
from serve_app.benchmark.host import Recorder
from serve_app.gating.checks.asked import for_rungs, shortened
from serve_app.gating.checks.drafters import CheckedDrafter
from serve_app.gating.checks.mixed import MixedDrafts
from serve_app.gating.checks.steps import Steps
from serve_app.gating.evidence import Difference, DrafterProof, ExactnessEvidence
from serve_app.proving.comparison import Comparison, Reply
from serve_app.proving.report import Row, row_of
from serve_app.proving.rungs import run_engine, rung_rows, write_oracle
from serve_app.proving.workload import Mode, Question, of_mode

# What `rung_rows` asks on every rung: no drafts, n-gram, random, oracle.
_RUNG_SOURCES = 4
# Each brings a wrong draft for more than half of all tokens.
_MIXED_SEEDS = range(4)
_ALONE = 4


@dataclass(kw_only=True)
class _Proofs:
    """Rows of comparisons, added up by drafter."""

    by_drafter: dict[str, DrafterProof] = field(default_factory=dict)

    def add(self, row: Row, /) -> None:
        # `rung_rows` names the length with the kind.
        name = row.drafter.split()[0]
        seen = row.comparison
        assert seen is not None
        old = self.by_drafter.get(name, DrafterProof(tokens=0, mismatches=0, drafts=0, accepted=0))
        self.by_drafter[name] = DrafterProof(
            tokens=old.tokens + seen.tokens,
            mismatches=old.mismatches + seen.mismatches,
            drafts=old.drafts + row.drafts,
            accepted=old.accepted + row.accepted,
            first=old.first or _first(seen),
        )


def prove_exactness(
    questions: Sequence[Question],
    /,
    *,
    model: LoadedModel,
    drafters: Sequence[CheckedDrafter],
    rung_tokens: int,
    steps: Steps,
) -> ExactnessEvidence:
    """Asks everything with everyone.

    Args:
        questions: in pairs, greedy and sampled.
        rung_tokens: length of the replies on each window size alone.

    Raises:
        OutriderError: a drafter did not start, or the engine gave up a request.
    """
    plain = _plain_replies(questions, model=model, steps=steps)
    proofs = _Proofs()
    with tempfile.TemporaryDirectory(prefix="outrider-gate-") as folder:
        oracle = Path(folder) / "oracle.json"
        for mode in Mode:
            # One mode at a time: with two continuations of the same prompt the oracle would have to guess.
            asked = of_mode(questions, mode=mode)
            write_oracle(oracle, questions=asked, plain=plain)
            sources = list(_sources(model, drafters=drafters, oracle=oracle))
            steps.begin(f"comparing tokens, {mode}", total=len(sources))
            on_chip = {drafter.kind for drafter in drafters if drafter.is_on_chip}
            for name, source in sources:
                for row in _compared(
                    asked, name=name, source=source, model=model, plain=plain, on_chip=name in on_chip
                ):
                    proofs.add(row)
                steps.advance()
        rungs = for_rungs(questions, most=model.settings.slots, tokens=rung_tokens)
        short = shortened(plain, questions=rungs)
        write_oracle(oracle, questions=rungs, plain=short)
        steps.begin("every window size alone", total=_RUNG_SOURCES * len(model.report.ladder.rungs))
        for row in rung_rows(rungs, model=model, plain=short, oracle=oracle):
            proofs.add(row)
            steps.advance()
    report = model.report
    return ExactnessEvidence(
        drafters=proofs.by_drafter,
        rungs=tuple(rung.rows for rung in report.ladder.rungs),
        refused={rung.rows: reason for rung, reason in report.refused.items()},
    )


def _plain_replies(questions: Sequence[Question], *, model: LoadedModel, steps: Steps) -> dict[str, Reply]:
    steps.begin("plain replies, one at a time", total=len(questions))
    cold = replace(model, settings=replace(model.settings, prefix_cache=False))
    engine = cold.engine(drafts=NoDrafts(), metrics=Recorder())
    replies: dict[str, Reply] = {}
    for question in questions:
        replies |= run_engine(engine, questions=[question])
        steps.advance()
    return replies


def _sources(
    model: LoadedModel, *, drafters: Sequence[CheckedDrafter], oracle: Path
) -> Iterator[tuple[str, AbstractContextManager[DraftSource]]]:
    most = max(model.settings.draft_k, 1)
    yield "off", nullcontext(NoDrafts())
    for drafter in drafters:
        yield drafter.kind, drafter.patient()
    vocabulary, right = model.config.vocabulary, OracleSettings(path=str(oracle), max_k=most)
    yield "random", nullcontext(OnboardDrafts(build_strategy(NoiseSettings(vocab_size=vocabulary, max_k=most))))
    yield "oracle", nullcontext(OnboardDrafts(build_strategy(right)))
    for seed in _MIXED_SEEDS:
        oracle_drafts = OnboardDrafts(build_strategy(right))
        yield "mixed", nullcontext(MixedDrafts(oracle_drafts, vocabulary=vocabulary, seed=seed))


def _compared(
    questions: Sequence[Question],
    *,
    name: str,
    source: AbstractContextManager[DraftSource],
    model: LoadedModel,
    plain: dict[str, Reply],
    on_chip: bool,
) -> Iterator[Row]:
    with source as drafts:
        engine = model.engine(drafts=drafts, metrics=Recorder(), on_chip=on_chip)
        together = run_engine(engine, questions=questions)
        alone: dict[str, Reply] = {}
        for question in questions[::_ALONE]:
            alone |= run_engine(engine, questions=[question])
    return (
        row_of(replies, plain=plain, drafter=name, company="", mode="", seconds=0.0) for replies in (together, alone)
    )


def _first(seen: Comparison) -> Difference | None:
    found = seen.first
    if found is None:
        return None
    return Difference(prompt=found.name, position=found.position, wanted=found.plain, got=found.got)
