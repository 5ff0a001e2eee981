"""How fast an engine is with so many requests decoding, drafts or none. Knows windows and drafts, no records.

Only windows count in which every slot that should be active decodes: neither prompts nor a batch that empties blur what
a number of active slots costs. Both sides of a comparison answer the same questions, and the replies are the same, so
they have the same work. One engine does all runs, and a request says whether it is drafted for, as in the service.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest, GenerationStatistics, SpeculationSettings
from deployments.verifier.delivery import Delivery
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted
from deployments.verifier.loading import LoadedModel
from serve_app.benchmark.host import Recorder
from serve_app.proving.workload import Question

type Clock = Callable[[], float]

_WINDOW = "window_seconds"
_DRAFTED = "spec_decode_num_drafts"


@dataclass(kw_only=True)
class Sample:
    """One run.

    Attributes:
        tokens, seconds: of the windows that count.
        plain_windows, drafted_windows: seconds of each that counts, without drafts and with them.
        drafter: seconds of each round of drafts, from asking to having them.
        rounds: windows of single requests by (drafts, of them accepted).
    """

    tokens: int = 0
    seconds: float = 0.0
    plain_windows: list[float] = field(default_factory=list)
    drafted_windows: list[float] = field(default_factory=list)
    drafter: list[float] = field(default_factory=list)
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def tokens_per_second(self) -> float:
        """0 where no window counted."""
        return self.tokens / self.seconds if self.seconds else 0.0


class TimedDrafts:
    """A `DraftSource` that notes how long each round of another one took, from asking to having drafts."""

    def __init__(self, source: DraftSource, /, *, clock: Clock = time.perf_counter) -> None:
        self._source = source
        self._clock = clock
        self._asked_at: float | None = None
        self.seconds: list[float] = []

    def begin(self, request: GenerateRequest, /) -> None:
        self._source.begin(request)

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        self._asked_at = self._clock()
        self._source.ask(wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        asked_at = self._clock() if self._asked_at is None else self._asked_at
        self._asked_at = None
        drafts = self._source.exchange(wanted)
        if drafts.tokens:
            self.seconds.append(self._clock() - asked_at)
        return drafts

    def close(self, request_id: str, /, *, reason: str) -> None:
        self._source.close(request_id, reason=reason)


class SpeedBench:
    """Runs questions on one engine, so many at a time.

    Args:
        on_chip: as in `LoadedModel.engine`.
    """

    def __init__(
        self, model: LoadedModel, /, *, drafts: DraftSource, on_chip: bool = False, clock: Clock = time.perf_counter
    ) -> None:
        self._metrics = _Noticing()
        self._drafts = TimedDrafts(drafts, clock=clock)
        self._engine = model.engine(drafts=self._drafts, metrics=self._metrics, on_chip=on_chip)
        self._clock = clock
        self._runs = 0

    def run(self, questions: Sequence[Question], /, *, active: int, speculation: SpeculationSettings) -> Sample:
        """Answers all of them, `active` at a time, each to its end.

        Raises:
            OutriderError: the engine gave one up.
        """
        self._runs += 1
        waiting = deque(
            msgspec.structs.replace(
                question.request, request_id=f"{question.name} {self._runs}.{place}", speculation=speculation
            )
            for place, question in enumerate(questions)
        )
        sample = Sample()
        begun, open_requests = len(self._drafts.seconds), 0
        while waiting or open_requests:
            while waiting and open_requests < active:
                self._engine.submit(waiting.popleft())
                open_requests += 1
            open_requests -= self._step(sample, active=active)
        sample.drafter = self._drafts.seconds[begun:]
        return sample

    def _step(self, sample: Sample, *, active: int) -> int:
        """One window; says how many requests ended."""
        batch = self._engine.scheduler.active
        counts = len(batch) == active and all(slot.is_decoding for slot in batch)
        self._metrics.observed.clear()
        self._metrics.drafted = False
        started = self._clock()
        deliveries = self._engine.step()
        seconds = self._clock() - started
        if counts:
            sample.tokens += sum(len(each.chunk.token_ids) for each in deliveries if each.chunk is not None)
            sample.seconds += seconds
            windows = sample.drafted_windows if self._metrics.drafted else sample.plain_windows
            windows += self._metrics.observed[_WINDOW]
        ended = [statistics for each in deliveries if (statistics := _end_of(each)) is not None]
        for statistics in ended:
            sample.rounds.update(_rounds(statistics))
        return len(ended)


class _Noticing(Recorder):
    """Notices whether any request of a window had drafts."""

    def __init__(self) -> None:
        super().__init__()
        self.drafted = False

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """Counts nothing."""
        del amount, labels
        self.drafted = self.drafted or name == _DRAFTED


def _end_of(delivery: Delivery) -> GenerationStatistics | None:
    if delivery.chunk is None:
        raise delivery.error or Unavailable("the engine gave up a request; run the check again")
    return None if delivery.chunk.finish_reason is None else delivery.chunk.statistics


def _rounds(statistics: GenerationStatistics) -> Counter[tuple[int, int]]:
    return Counter(
        {
            (drafts, accepted): count
            for drafts, row in enumerate(statistics.rounds)
            for accepted, count in enumerate(row)
            if drafts and count
        }
    )
