"""Networks with recurrent layers are exact whatever the cache does: their states are rolled back, left behind, found
again and lost, and no reply changes. What `test_exactness_cache.py` does for llama.

The reference is each request alone, without drafts, in a cache of its own. `pytest -s` prints what was compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest

from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted, NoDrafts
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings
from tests.verifier.comparing import DRAFTERS, VOCABULARY, Plain, compared, requests_for
from tests.verifier.serving import Reply, Tallies, serve
from tests.verifier.test_exactness_cache import CASES, Case, arrivals, plain_for

type Build = tuple[str, Precision]
type LoadBuild = Callable[[Build], LoadedModel]

QUICK: Build = ("qwen3_5_moe", Precision.INT8)
# Each of eight requests leaves the state of its prompt, the newest of its reply, and one where it parts from others.
KEPT = 24
# Somebody always makes room where pages are few.
PRESSED = tuple(replace(case, preempts=0.1) if case.cache_pages is not None else case for case in CASES)
BUILDS: tuple[Build, ...] = (QUICK, ("qwen3_5", Precision.F32), ("qwen3_5", Precision.INT8))


class Wavering(NoDrafts):
    """Knows the replies, and is wrong now and then: every number of accepted drafts occurs."""

    def __init__(self, plain: Plain, *, skill: float) -> None:
        self._replies: Mapping[str, Reply] = plain.replies
        self._random = Random(skill)
        self._skill = skill

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        return Drafts(tokens={item.request.request_id: self._guess(item) for item in wanted}, kind="wavering")

    def _guess(self, item: DraftWanted) -> tuple[int, ...]:
        name = item.request.request_id.removeprefix("cancelled-")
        rest = self._replies[name].tokens[len(item.sequence) - len(item.request.prompt_ids) :]
        count = self._random.randint(1, item.k)
        right = [*rest, *[0] * count][:count]
        return tuple(
            token if self._random.random() < self._skill else self._random.randrange(VOCABULARY) for token in right
        )


def wavering(plain: Plain) -> DraftSource:
    return Wavering(plain, skill=0.8)


SOURCES: dict[str, Callable[[Plain], DraftSource]] = {
    **{name: (lambda plain, make=make: make(plain.oracle)) for name, make in DRAFTERS.items()},  # type: ignore[misc]
    "wavering": wavering,
}


@pytest.fixture(scope="module")
def load(goldens: Path) -> LoadBuild:
    @cache
    def make(build: Build) -> LoadedModel:
        name, precision = build
        settings = ModelSettings(
            model_path=str(goldens / name / f"{name}.f16.gguf"),
            precision=precision,
            slots=8,
            context=512,
            page_size=16,
            draft_k=7,
            ladder=(8, 32),
            kept_states=KEPT,
        )
        return load_model(settings, progress=lambda text: None)

    return make


@pytest.fixture(scope="module")
def plain(load: LoadBuild, golden_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Build], Plain]:
    """Eight requests, and eight more that share their beginnings."""

    @cache
    def make(build: Build) -> Plain:
        base = requests_for(golden_llama)
        longest = max((one.prompt_ids for one in base), key=len)
        sharing = [
            msgspec.structs.replace(
                one, request_id=f"s{number}", prompt_ids=(*longest[: 40 * (1 + number % 3)], number)
            )
            for number, one in enumerate(base)
        ]
        oracle = tmp_path_factory.mktemp("oracle") / "oracle.json"
        return plain_for(load(build), [*base, *sharing], oracle=oracle)

    return make


def assert_exact(model: LoadedModel, *, wanted: Plain, case: Case, source: str) -> None:
    """Everything at once and in any order, as `case` says."""
    tallies = Tallies()
    engine = case.engine_of(model).engine(drafts=SOURCES[source](wanted), metrics=tallies)
    random = Random(f"{case.name} {source}")
    events = arrivals(wanted.requests, random=random, cancels=case.cancels)
    replies: dict[str, Reply] = {}
    events_left, forced = True, 0
    while events_left or not engine.is_idle:
        for event in [next(events, None) for _ in range(random.randrange(3))]:
            match event:
                case None:
                    events_left = False
                case str():
                    engine.cancel(event)
                case _:
                    replies[event.request_id] = Reply()
                    engine.submit(event)
        if engine.scheduler.active and random.random() < case.preempts:
            engine.scheduler.preempt(random.choice(engine.scheduler.active))
            forced += 1
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        engine.scheduler.check_integrity()

    tokens = compared(wanted.replies, {name: replies[name] for name in wanted.replies})
    counted = {name: tallies.counters[name] for name in ("num_preemptions", "prefix_cache_hits", "pages_evicted")}
    print(f"{case.name} {source}: {tokens} tokens compared, {counted}, {forced} preemptions forced")
    assert tokens == 2 * 377
    assert (counted["num_preemptions"] + forced > 0) == (case.cache_pages is not None)
    assert (counted["prefix_cache_hits"] > 0) == case.prefix_cache


@pytest.mark.parametrize("source", ["off", "wavering"])
@pytest.mark.parametrize("case", PRESSED, ids=lambda case: case.name)
def test_the_cache_changes_no_reply(load: LoadBuild, plain: Callable[[Build], Plain], case: Case, source: str) -> None:
    assert_exact(load(QUICK), wanted=plain(QUICK), case=case, source=source)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", PRESSED, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "build",
    [QUICK, *(pytest.param(build, marks=pytest.mark.exhaustive) for build in BUILDS[1:])],
    ids=lambda build: " ".join(build),
)
def test_the_cache_changes_no_reply_with_any_drafter(
    load: LoadBuild, plain: Callable[[Build], Plain], build: Build, case: Case, source: str
) -> None:
    assert_exact(load(build), wanted=plain(build), case=case, source=source)


@pytest.mark.parametrize("source", ["off", "oracle", "wavering"])
def test_a_second_turn_goes_on_from_a_state_that_decoding_left(
    load: LoadBuild, plain: Callable[[Build], Plain], tmp_path: Path, source: str
) -> None:
    model, first = load(QUICK), plain(QUICK)
    turns = [second_turn(one, reply=first.replies[one.request_id]) for one in first.requests[:8]]
    second = plain_for(model, turns, oracle=tmp_path / "oracle.json")
    both = Plain(requests=(), replies={**first.replies, **second.replies}, oracle=first.oracle)
    engine = model.engine(drafts=SOURCES[source](both), metrics=Tallies())
    serve(engine, first.requests[:8])
    answers = serve(engine, turns)

    assert compared(second.replies, {one.request_id: answers[one.request_id] for one in turns}) == 377
    reused = [answers[one.request_id].statistics.cache_n for one in turns]
    print(f"{source}: {reused} of {[len(one.prompt_ids) for one in turns]} tokens found")
    for one, found in zip(turns, reused, strict=True):
        # What was accepted in the first turn's last window is not in the state that it left.
        assert 0 <= (len(one.prompt_ids) - 2) // 16 * 16 - found <= 16


def second_turn(one: GenerateRequest, *, reply: Reply) -> GenerateRequest:
    return msgspec.structs.replace(
        one, request_id=f"second-{one.request_id}", prompt_ids=(*one.prompt_ids, *reply.tokens, 7)
    )


def test_states_add_up_with_the_memory_that_is_planned(load: LoadBuild) -> None:
    """One per slot and those that are kept, the scratch state and the empty one; seven pending rows a slot."""
    shape = load(QUICK).programs.shape
    assert (shape.states, shape.pending) == (8 + KEPT + 2, 8 * 7 + 1)
    held = sum(leaf.nbytes for entry in load(QUICK).programs._cache for leaf in entry if isinstance(entry, tuple))
    assert held == shape.state_nbytes > 0
