"""Does a drafter pay here? Plain and speculative runs in turn, at each number of active slots. Knows no keys.

At each number several K are tried first, quickly; the best one is then measured against plain decoding, in pairs of
runs.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from statistics import median

from deployments.messages.generation import SpeculationSettings
from deployments.verifier.drafts import DraftSource
from deployments.verifier.loading import LoadedModel
from deployments.verifier.sizing import ModelSettings
from serve_app.benchmark.alternation import Arm, Effort, alternate, quotients, spread
from serve_app.gating.checks.crossings import measured_through
from serve_app.gating.checks.speed import Clock, Sample, SpeedBench
from serve_app.gating.checks.steps import Steps
from serve_app.gating.evidence import ProfitEvidence, ProfitPoint, Ratio
from serve_app.gating.policy import LEAST_GAIN
from serve_app.proving.workload import PLAIN, Mode, Question, of_mode

_TRIED = (1, 2, 3, 5, 7)
_FEWEST_QUESTIONS = 4
_PLAIN_ARM = 0


@dataclass(frozen=True, kw_only=True)
class ProfitEfforts:
    """How often to measure.

    Attributes:
        survey: rounds for choosing K.
        pairs: rounds with the chosen one.
    """

    survey: Effort
    pairs: Effort


def measure_profit(
    numbers: Sequence[int],
    /,
    *,
    model: LoadedModel,
    drafts: DraftSource,
    questions: Sequence[Question],
    efforts: ProfitEfforts,
    steps: Steps,
    on_chip: bool = False,
    least_gain: float = LEAST_GAIN,
    clock: Clock = time.perf_counter,
) -> ProfitEvidence:
    """The evidence at these numbers of active slots, and next to where it begins or ceases to pay.

    Args:
        questions: the greedy ones of them are asked.
        on_chip: as in `LoadedModel.engine`.
        least_gain: where the ratio crosses it, the numbers beside are measured too.
        clock: what speeds are measured by.

    Raises:
        OutriderError: the engine gave a request up.
    """
    bench = SpeedBench(model, drafts=drafts, on_chip=on_chip, clock=clock)
    meter = _Meter(bench, settings=model.settings, questions=questions, efforts=efforts, steps=steps)
    points = measured_through(
        numbers, measure=meter.point, gain=lambda point: point.ratio.median, least_gain=least_gain
    )
    return ProfitEvidence(points=tuple(points.values()))


def tried_lengths(settings: ModelSettings, /, *, active: int) -> tuple[int, ...]:
    """The K worth trying with so many active slots; none where they leave no room for drafts."""
    rows = settings.slots * settings.draft_k if settings.draft_rows is None else settings.draft_rows
    most = min(settings.draft_k, rows // active)
    return tuple(sorted({k for k in _TRIED if k <= most} | {most})) if most else ()


def acceptance_of(rounds: Counter[tuple[int, int]], /) -> tuple[float, ...]:
    """Per position, how often a draft was kept where the ones before it were.

    Args:
        rounds: how often there were so many drafts, of which so many were kept.
    """
    longest = max((drafts for drafts, _ in rounds), default=0)
    shares = []
    for place in range(longest):
        reached = sum(n for (drafts, kept), n in rounds.items() if drafts > place and kept >= place)
        if not reached:
            break
        shares.append(round(sum(n for (_, kept), n in rounds.items() if kept > place) / reached, 3))
    return tuple(shares)


class _Meter:
    def __init__(
        self,
        bench: SpeedBench,
        *,
        settings: ModelSettings,
        questions: Sequence[Question],
        efforts: ProfitEfforts,
        steps: Steps,
    ) -> None:
        self._settings = settings
        self._bench = bench
        self._questions = of_mode(questions, mode=Mode.GREEDY)
        self._efforts = efforts
        self._steps = steps

    def point(self, active: int, /) -> ProfitPoint | None:
        """`None` where there is no room for drafts, or never so many requests decode at once."""
        tried = tried_lengths(self._settings, active=active)
        if not tried:
            self._steps.say(f"{active} active slots leave no room for drafts; see verifier.draft_rows")
            return None
        survey = self._survey(tried, active=active) if len(tried) > 1 else {}
        best = max(survey, key=lambda k: survey[k], default=tried[0])
        found = self._alternated((best,), active=active, effort=self._efforts.pairs, title=f"K {best}")
        plain, drafted = found[_PLAIN_ARM], found[best]
        if not all(sample.tokens_per_second for sample in (*plain, *drafted)):
            self._steps.say(f"{active} requests never decoded at once; raise --tokens or verifier.cache_pages")
            return None
        return _point(plain, drafted, active=active, k=best, survey=survey)

    def _survey(self, tried: Sequence[int], *, active: int) -> dict[int, float]:
        found = self._alternated(tried, active=active, effort=self._efforts.survey, title="choosing K")
        plain = found[_PLAIN_ARM]
        return {k: median(_ratios(found[k], plain=plain)) for k in tried if all(s.seconds for s in (*plain, *found[k]))}

    def _alternated(
        self, lengths: Sequence[int], *, active: int, effort: Effort, title: str
    ) -> dict[int, tuple[Sample, ...]]:
        questions = self._for(active)
        slots = "slot" if active == 1 else "slots"
        self._steps.begin(
            f"{active} active {slots}, {title}", total=(1 + len(lengths)) * (effort.rounds + effort.warm_ups)
        )

        def arm(speculation: SpeculationSettings) -> Arm[Sample]:
            def run(_: int) -> Sample:
                sample = self._bench.run(questions, active=active, speculation=speculation)
                self._steps.advance()
                return sample

            return run

        arms = {_PLAIN_ARM: arm(PLAIN), **{k: arm(SpeculationSettings(max_draft=k)) for k in lengths}}
        return alternate(arms, effort=effort)

    def _for(self, active: int) -> tuple[Question, ...]:
        """Half as many again as are active, so that the batch stays full for a while when the first have ended."""
        return tuple(islice(cycle(self._questions), max(_FEWEST_QUESTIONS, active + active // 2)))


def _ratios(drafted: Sequence[Sample], *, plain: Sequence[Sample]) -> tuple[float, ...]:
    return quotients(_speeds(drafted), lower=_speeds(plain))


def _speeds(samples: Sequence[Sample]) -> list[float]:
    return [sample.tokens_per_second for sample in samples]


def _point(
    plain: Sequence[Sample], drafted: Sequence[Sample], *, active: int, k: int, survey: dict[int, float]
) -> ProfitPoint:
    ratio = spread(_ratios(drafted, plain=plain))
    rounds = sum((sample.rounds for sample in drafted), Counter[tuple[int, int]]())
    return ProfitPoint(
        active=active,
        k=k,
        plain_tokens_s=round(median(_speeds(plain)), 2),
        speculative_tokens_s=round(median(_speeds(drafted)), 2),
        ratio=Ratio(median=round(ratio.median, 3), min=round(ratio.least, 3), max=round(ratio.most, 3)),
        pairs=ratio.runs,
        rounds=sum(len(sample.drafted_windows) for sample in drafted),
        acceptance=acceptance_of(rounds),
        plain_window_ms=_milliseconds(plain, of=lambda sample: sample.plain_windows),
        window_ms=_milliseconds(drafted, of=lambda sample: sample.drafted_windows),
        drafter_ms=_milliseconds(drafted, of=lambda sample: sample.drafter),
        by_k={each: round(value, 3) for each, value in {**survey, k: ratio.median}.items()},
    )


def _milliseconds(samples: Sequence[Sample], *, of: Callable[[Sample], list[float]]) -> float:
    seconds = list(chain.from_iterable(of(sample) for sample in samples))
    return round(1e3 * median(seconds), 3) if seconds else 0.0
