"""A small model to check, and what can be wrong with it: both are put in where the checks take what they measure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted, NoDrafts
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.onboard import OnboardDrafts
from deployments.verifier.packing import PackedWindow
from deployments.verifier.programs import Launched, Programs, WindowResult
from deployments.verifier.sizing import ModelSettings
from serve_app.benchmark.alternation import Effort
from serve_app.benchmark.host import Recorder
from serve_app.gating.checks.asked import Asked
from serve_app.gating.checks.check import Efforts
from serve_app.gating.checks.drafters import CheckedDrafter
from serve_app.gating.checks.profit import ProfitEfforts
from serve_app.gating.gatekeeper import DrafterChoice
from serve_app.proving.rungs import run_engine
from serve_app.proving.workload import Mode, Question

SHORT = Efforts(
    prompts=1,
    rung_tokens=3,
    tokens=24,
    profit=ProfitEfforts(survey=Effort(rounds=1, least=1), pairs=Effort(rounds=3)),
)


def small_model(path: Path) -> LoadedModel:
    settings = ModelSettings(
        model_path=str(path),
        precision=Precision.F32,
        kernels=Kernels.XLA,
        slots=4,
        context=128,
        page_size=16,
        draft_k=3,
        ladder=(8, 16),
    )
    return load_model(settings, progress=lambda _: None)


def small_questions(model: LoadedModel, *, tokens: int = 24, prompts: int = 4) -> Asked:
    draw = np.random.default_rng(5)
    questions = []
    for number in range(prompts):
        # A few tokens, over and over, so that there is something to copy.
        ids = tuple(draw.integers(0, model.config.vocabulary, 6).tolist()) * 4
        for mode, sampling in zip(
            Mode, (SamplingSettings(temperature=0.0), SamplingSettings(temperature=0.8, seed=number)), strict=True
        ):
            request = GenerateRequest(
                request_id=f"p{number} {mode}", prompt_ids=ids, max_tokens=tokens, sampling=sampling
            )
            questions.append(Question(mode=mode, request=request))
    return Asked(questions=tuple(questions), description="made-up prompts")


class Costs:
    """A clock by which time passes only where it is told to: what is measured by it is the same on a busy machine."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def spend(self, seconds: float) -> None:
        self._now += seconds


class KnowingDrafts:
    """Drafts that are always right, after a pause: a drafter as good as can be, and as slow as wanted."""

    def __init__(
        self, replies: dict[str, tuple[int, ...]], *, pause_s: float = 0.0, costs: Costs | None = None
    ) -> None:
        self._replies = replies
        self._pause_s = pause_s
        self._costs = costs

    def begin(self, request: GenerateRequest, /) -> None:
        del request

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        del wanted

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        if self._costs is not None:
            self._costs.spend(self._pause_s)
        tokens = {}
        for item in wanted:
            request = item.request
            said = len(item.sequence) - len(request.prompt_ids)
            # The name ends with the number of the run.
            reply = self._replies[request.request_id.rsplit(" ", 1)[0]]
            if guess := reply[said : said + item.k]:
                tokens[request.request_id] = guess
        return Drafts(tokens=tokens, kind="ngram")

    def close(self, request_id: str, /, *, reason: str) -> None:
        del request_id, reason


def replies_of(model: LoadedModel, asked: Asked) -> dict[str, tuple[int, ...]]:
    engine = model.engine(drafts=NoDrafts(), metrics=Recorder())
    return {name: reply.token_ids for name, reply in run_engine(engine, questions=asked.questions).items()}


def onboard_ngram(model: LoadedModel, *, serving: DraftSource | None = None) -> CheckedDrafter:
    """N-gram in this process; at another source's speed, if one is given."""
    settings = NgramSettings(max_n=3, min_n=1, max_k=model.settings.draft_k)

    @contextmanager
    def opened() -> Iterator[DraftSource]:
        yield OnboardDrafts(build_strategy(settings))

    @contextmanager
    def replaced() -> Iterator[DraftSource]:
        assert serving is not None
        yield serving

    return CheckedDrafter(
        choice=DrafterChoice(kind="ngram", settings=settings),
        patient=opened,
        serving=opened if serving is None else replaced,
    )


class PricedPrograms(Programs):
    """The programs of a model, each window of which costs the same, by a clock of its own."""

    def __init__(self, programs: Programs, *, costs: Costs, window_s: float) -> None:
        # One state: the cache is handed from window to window.
        self.__dict__ = programs.__dict__
        self._costs = costs
        self._window_s = window_s

    def launch(self, window: PackedWindow, /) -> Launched:
        self._costs.spend(self._window_s)
        return super().launch(window)


def priced(model: LoadedModel, *, costs: Costs, window_s: float = 0.01) -> LoadedModel:
    """The same model, at a price for each window."""
    return replace(model, programs=PricedPrograms(model.programs, costs=costs, window_s=window_s))


class LenientPrograms(Programs):
    """The programs of a model, but each `every`-th draft that should be refused is accepted."""

    def __init__(self, programs: Programs, *, every: int) -> None:
        # One state: the cache is handed from window to window.
        self.__dict__ = programs.__dict__
        self._every = every
        self._refused = 0

    def launch(self, window: PackedWindow, /) -> Launched:
        under_way = super().launch(window)
        return _Accepting(
            hidden=under_way.hidden,
            emitted=under_way.emitted,
            wants_logprobs=under_way.wants_logprobs,
            window=window,
            judge=self,
        )

    def accept_some(self, result: WindowResult, *, window: PackedWindow) -> WindowResult:
        tokens, live = result.tokens.copy(), result.live.copy()
        for place, (_, token, first, *_) in enumerate(window.emit_ints.tolist()):
            if first or not live[place - 1] or live[place]:
                continue
            self._refused += 1
            if self._refused % self._every == 0:
                tokens[place - 1], live[place] = token, True
        return replace(result, tokens=tokens, live=live)


@dataclass(frozen=True, kw_only=True)
class _Accepting(Launched):
    window: PackedWindow
    judge: LenientPrograms

    def result(self) -> WindowResult | None:
        found = super().result()
        return None if found is None else self.judge.accept_some(found, window=self.window)


def lenient(model: LoadedModel, *, every: int) -> LoadedModel:
    """The same model with a verifier that is wrong once in a while."""
    return replace(model, programs=LenientPrograms(model.programs, every=every))
