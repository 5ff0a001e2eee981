"""Which windows count, and what is noted about them."""

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.messages.generation import GenerateRequest, SpeculationSettings
from deployments.verifier.drafts import DraftWanted, NoDrafts
from deployments.verifier.loading import LoadedModel
from deployments.verifier.onboard import OnboardDrafts
from serve_app.gating.checks.speed import SpeedBench, TimedDrafts
from serve_app.proving.workload import PLAIN, Mode, of_mode
from tests.serve_app.gating.checks.small import KnowingDrafts, replies_of, small_questions


class Ticks:
    """A clock that says how often it was asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_round_takes_from_asking_to_having_drafts() -> None:
    clock = Ticks()
    drafts = TimedDrafts(OnboardDrafts(build_strategy(NgramSettings(max_n=1, min_n=1))), clock=clock)
    request = GenerateRequest(request_id="a", prompt_ids=(1, 2, 1), max_tokens=4)
    wanted = [DraftWanted(request=request, sequence=[1, 2, 1], k=1)]
    drafts.ask(wanted)
    clock.now += 10
    assert drafts.exchange(wanted).tokens == {"a": (2,)}
    assert drafts.exchange(wanted).tokens == {"a": (2,)}
    assert drafts.seconds == [11.0, 1.0]
    nothing = TimedDrafts(NoDrafts(), clock=clock)
    nothing.exchange(wanted)
    assert not nothing.seconds


def test_only_full_batches_of_decoding_requests_count(model: LoadedModel) -> None:
    questions = of_mode(small_questions(model).questions, mode=Mode.GREEDY)[:2]
    bench = SpeedBench(model, drafts=NoDrafts())
    alone = bench.run(questions, active=1, speculation=PLAIN)
    # The first token of each reply comes of its prompt's window.
    assert alone.tokens == 2 * 23
    assert len(alone.plain_windows) == alone.tokens
    assert alone.seconds > 0
    assert not alone.drafted_windows
    assert bench.run(questions, active=2, speculation=PLAIN).tokens <= 2 * 23
    never = bench.run(questions, active=3, speculation=PLAIN)
    assert never.tokens == never.tokens_per_second == 0


def test_windows_with_drafts_are_told_from_others(model: LoadedModel) -> None:
    asked = small_questions(model)
    questions = of_mode(asked.questions, mode=Mode.GREEDY)[:1]
    bench = SpeedBench(model, drafts=KnowingDrafts(replies_of(model, asked)))
    found = bench.run(questions, active=1, speculation=SpeculationSettings(max_draft=2))
    assert found.tokens == 23
    assert len(found.drafted_windows) == 8
    assert not found.plain_windows[1:]
    assert found.rounds == {(2, 2): 7, (1, 1): 1}
    assert len(found.drafter) == 8
    plain = bench.run(questions, active=1, speculation=PLAIN)
    assert len(plain.plain_windows) == 23
    assert not plain.rounds
    assert not plain.drafter
