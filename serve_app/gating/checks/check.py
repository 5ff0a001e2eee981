"""The whole check of one loaded model: exactness once, then profit for each drafter. Writes nothing anywhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from deployments.messages.errors import OutriderError
from deployments.verifier.loading import LoadedModel
from serve_app.benchmark.alternation import Effort
from serve_app.gating.checks.asked import Asked, for_exactness
from serve_app.gating.checks.drafters import CheckedDrafter
from serve_app.gating.checks.exactness import prove_exactness
from serve_app.gating.checks.judging import failed_exactness, failed_profit, judge_exactness, judge_profit
from serve_app.gating.checks.profit import ProfitEfforts, measure_profit
from serve_app.gating.checks.speed import Clock
from serve_app.gating.checks.steps import Steps
from serve_app.gating.keys import ExactnessKey
from serve_app.gating.policy import LEAST_GAIN
from serve_app.gating.records import ExactnessRecord, Measured, ProfitRecord, Record
from serve_app.gating.running import exactness_key, profit_key


@dataclass(frozen=True, kw_only=True)
class Efforts:
    """How much of each is done.

    Attributes:
        prompts: compared token by token, each greedy and sampled.
        rung_tokens: length of the replies on each window size alone.
        tokens: length of all others, if nobody says.
    """

    prompts: int
    rung_tokens: int
    tokens: int
    profit: ProfitEfforts


FULL = Efforts(
    prompts=12,
    rung_tokens=8,
    tokens=64,
    profit=ProfitEfforts(survey=Effort(rounds=3, seconds=40, least=2), pairs=Effort(rounds=7, seconds=45, least=3)),
)
QUICK = Efforts(
    prompts=3,
    rung_tokens=4,
    tokens=32,
    profit=ProfitEfforts(survey=Effort(rounds=1, least=1), pairs=Effort(rounds=3, seconds=10, least=2)),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a check that ran to its end found. `profits` is empty where exactness did not pass."""

    exactness: ExactnessRecord
    profits: tuple[ProfitRecord, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        return (self.exactness, *self.profits)

    @property
    def has_passed(self) -> bool:
        return bool(self.profits) and all(record.has_passed for record in self.records)


def run_check(
    model: LoadedModel,
    /,
    *,
    drafters: Sequence[CheckedDrafter],
    asked: Asked,
    numbers: Sequence[int],
    efforts: Efforts,
    steps: Steps,
    least_gain: float = LEAST_GAIN,
    clock: Clock = time.perf_counter,
) -> Outcome:
    """Checks `drafters` on these programs.

    Args:
        numbers: of active slots, rising; those beyond the model's slots are left out.
        least_gain: the smallest ratio that counts as faster.
        clock: what speeds are measured by.

    Raises:
        CheckpointError: the model's files cannot be read.
    """
    program = exactness_key(model.facts())
    measured = Measured(at=datetime.now(UTC).replace(microsecond=0), outrider=version("outrider"))
    exactness = _exactness(
        model, program=program, drafters=drafters, asked=asked, efforts=efforts, steps=steps, measured=measured
    )
    if not exactness.has_passed:
        # How fast a wrong reply comes is no evidence of anything.
        return Outcome(exactness=exactness, profits=())
    fitting = [number for number in numbers if number <= model.settings.slots]
    profits = []
    for drafter in drafters:
        choice = drafter.choice
        key = profit_key(program, kind=choice.kind, settings=choice.settings, placement=choice.placement)
        try:
            with drafter.serving() as drafts:
                evidence = measure_profit(
                    fitting,
                    model=model,
                    drafts=drafts,
                    on_chip=drafter.is_on_chip,
                    questions=asked.questions,
                    efforts=efforts.profit,
                    steps=steps,
                    least_gain=least_gain,
                    clock=clock,
                )
            described = f"{asked.description}, greedy"
            profits.append(
                judge_profit(evidence, key=key, measured=measured, description=described, least_gain=least_gain)
            )
        except OutriderError as error:
            profits.append(failed_profit(error, key=key, measured=measured))
    return Outcome(exactness=exactness, profits=tuple(profits))


def _exactness(
    model: LoadedModel,
    *,
    program: ExactnessKey,
    drafters: Sequence[CheckedDrafter],
    asked: Asked,
    efforts: Efforts,
    steps: Steps,
    measured: Measured,
) -> ExactnessRecord:
    try:
        evidence = prove_exactness(
            for_exactness(asked.questions, prompts=efforts.prompts),
            model=model,
            drafters=drafters,
            rung_tokens=efforts.rung_tokens,
            steps=steps,
        )
    except OutriderError as error:
        return failed_exactness(error, key=program, measured=measured)
    return judge_exactness(evidence, key=program, measured=measured, description=asked.description)
