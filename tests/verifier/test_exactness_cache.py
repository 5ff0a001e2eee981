"""Exact whatever the cache does: preemption at random, prefix hits forced and forbidden, growth refused, cancels.

The reference is each request alone, in a cache of its own that shares nothing. `pytest -s` prints what was compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.loading import LoadedModel
from tests.verifier.comparing import DRAFTERS, Plain, alone, compared, requests_for, write_oracle
from tests.verifier.conftest import LoadGolden
from tests.verifier.serving import Reply, Tallies

# The longest request takes 22 of the golden models' pages of 16, all eight together 72.
TIGHT = 32


def caching(model: LoadedModel, **changes: object) -> LoadedModel:
    """The same programs with another use of the cache."""
    return replace(model, settings=replace(model.settings, **changes))  # type: ignore[arg-type]  # fields by name


def plain_for(model: LoadedModel, requests: Sequence[GenerateRequest], *, oracle: Path) -> Plain:
    replies = alone(caching(model, prefix_cache=False), requests)
    return Plain(
        requests=tuple(requests), replies=replies, oracle=write_oracle(oracle, requests=requests, replies=replies)
    )


@pytest.fixture(scope="module")
def plain(
    load_golden: LoadGolden, golden_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Precision], Plain]:
    """The reference, once per precision: the eight requests, and eight more that share their beginnings."""
    made: dict[Precision, Plain] = {}

    def make(precision: Precision) -> Plain:
        if precision not in made:
            base = requests_for(golden_llama)
            longest = max((one.prompt_ids for one in base), key=len)
            sharing = [
                msgspec.structs.replace(
                    one, request_id=f"s{number}", prompt_ids=(*longest[: 40 * (1 + number % 3)], number)
                )
                for number, one in enumerate(base)
            ]
            oracle = tmp_path_factory.mktemp("oracle") / "oracle.json"
            made[precision] = plain_for(load_golden(precision), [*base, *sharing], oracle=oracle)
        return made[precision]

    return make


@dataclass(frozen=True, kw_only=True)
class Case:
    """One use of the cache.

    Attributes:
        cancels: every request is also sent again under another name, and that one is cancelled at some time.
        preempts: the share of windows before which somebody, no matter who, loses its slot.
    """

    name: str
    cache_pages: int | None = None
    reserve_tokens: int = 256
    prefix_cache: bool = True
    prefill_budget: int = 32
    cancels: bool = False
    preempts: float = 0.0

    def engine_of(self, model: LoadedModel) -> LoadedModel:
        return caching(
            model,
            cache_pages=self.cache_pages,
            reserve_tokens=self.reserve_tokens,
            prefix_cache=self.prefix_cache,
            prefill_budget=self.prefill_budget,
        )


CASES = (
    Case(name="hits forbidden", prefix_cache=False),
    Case(name="hits"),
    Case(name="growth", reserve_tokens=1, prefill_budget=8),
    Case(name="preemption", cache_pages=TIGHT, reserve_tokens=1, preempts=0.1, cancels=True),
    Case(name="preemption, hits forbidden", cache_pages=TIGHT, reserve_tokens=16, prefix_cache=False),
)


# In f32 as well where most happens at once.
GRID = [
    *((Precision.INT8, case, drafter) for case in CASES for drafter in DRAFTERS),
    *(
        pytest.param(Precision.F32, case, drafter, marks=pytest.mark.slow)
        for case in CASES
        if case.cancels
        for drafter in DRAFTERS
    ),
]


def arrivals(requests: Sequence[GenerateRequest], *, random: Random, cancels: bool) -> Iterator[GenerateRequest | str]:
    """Requests to submit and ids to cancel, in some order; a request before its own cancel."""
    for request in random.sample(requests, len(requests)):
        yield request
        if cancels:
            extra = msgspec.structs.replace(request, request_id=f"cancelled-{request.request_id}")
            yield extra
            yield extra.request_id


@pytest.mark.parametrize(
    ("precision", "case", "drafter"), GRID, ids=lambda part: part.name if isinstance(part, Case) else str(part)
)
def test_the_cache_changes_no_reply(
    load_golden: LoadGolden, plain: Callable[[Precision], Plain], precision: Precision, case: Case, drafter: str
) -> None:
    wanted, tallies = plain(precision), Tallies()
    engine = case.engine_of(load_golden(precision)).engine(drafts=DRAFTERS[drafter](wanted.oracle), metrics=tallies)
    random = Random(f"{case.name} {drafter}")
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
    print(f"{precision} {case.name} {drafter}: {tokens} tokens compared, {counted}, {forced} preemptions forced")
    assert tokens == 2 * 377
    assert (counted["num_preemptions"] + forced > 0) == (case.cache_pages is not None)
    assert (counted["prefix_cache_hits"] > 0) == case.prefix_cache
    assert engine.scheduler.pages_in_use == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_turn_over_pages_that_decoding_wrote(
    load_golden: LoadGolden,
    plain: Callable[[Precision], Plain],
    tmp_path: Path,
    drafter: str,
) -> None:
    """Whatever wrote them, with whatever drafts refused in between: the next turn reads them and is the plain one."""
    model, first = load_golden(Precision.INT8), plain(Precision.INT8)
    turns = [
        msgspec.structs.replace(
            one,
            request_id=f"second-{one.request_id}",
            prompt_ids=(*one.prompt_ids, *first.replies[one.request_id].tokens, 7),
        )
        for one in first.requests[:8]
    ]
    second = plain_for(model, turns, oracle=tmp_path / "oracle.json")
    engine = model.engine(drafts=DRAFTERS[drafter](first.oracle), metrics=Tallies())
    answers = {one.request_id: Reply() for one in (*first.requests[:8], *turns)}
    for batch in (first.requests[:8], turns):
        for one in batch:
            engine.submit(one)
        while not engine.is_idle:
            for delivery in engine.step():
                answers[delivery.request_id].take(delivery)
            engine.scheduler.check_integrity()

    assert compared(second.replies, {one.request_id: answers[one.request_id] for one in turns}) == 377
    for one in turns:
        # All whole pages of the first turn, whose last token never got into the cache.
        known = len(one.prompt_ids) - 2
        assert answers[one.request_id].statistics.cache_n == known // 16 * 16


def test_preemption_is_noticed_when_it_breaks_something(
    load_golden: LoadGolden, plain: Callable[[Precision], Plain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison itself: a slot that believes its pages still hold its tokens after it has lost them."""
    from deployments.verifier.paging import Paging

    enter = Paging.enter

    def believing(self: Paging, slot, /, *, positions: int, spare: int) -> bool:  # type: ignore[no-untyped-def]
        entered = enter(self, slot, positions=positions, spare=spare)
        if entered and slot.preemptions:
            slot.cached = len(slot.tokens) - 1
        return entered

    monkeypatch.setattr(Paging, "enter", believing)
    wanted = plain(Precision.INT8)
    tight = caching(load_golden(Precision.INT8), cache_pages=TIGHT, reserve_tokens=1, prefix_cache=False)
    engine = tight.engine(drafts=NoDrafts(), metrics=Tallies())
    replies = {one.request_id: Reply() for one in wanted.requests}
    for one in wanted.requests:
        engine.submit(one)
    while not engine.is_idle:
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
    with pytest.raises(AssertionError):
        compared(wanted.replies, replies)
