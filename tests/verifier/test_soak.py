"""A thousand turns of conversations that grow, share their beginnings and are cancelled: nothing leaks, nothing drifts.

`pytest -s -m slow tests/verifier/test_soak.py` prints what was seen on the way.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.engine import Engine
from deployments.verifier.onboard import OnboardDrafts
from tests.verifier.comparing import GREEDY, VOCABULARY
from tests.verifier.conftest import LoadGolden
from tests.verifier.serving import Reply, Tallies, serve

TURNS = 1000
LONGEST = 300
# Eight slots of up to 23 pages each would like four times as many.
PAGES = 40
SAMPLE = 80


@dataclass(kw_only=True)
class Conversation:
    """What has been said so far, and the turn that is being answered."""

    tokens: list[int]
    asked: GenerateRequest | None = None
    reply: Reply = field(default_factory=Reply)


@dataclass(kw_only=True)
class Soak:
    """Conversations that all go on at once over one engine."""

    engine: Engine
    random: Random
    systems: list[list[int]]
    conversations: list[Conversation] = field(default_factory=list)
    finished: list[tuple[GenerateRequest, Reply]] = field(default_factory=list)
    turns: int = 0
    cancelled: int = 0

    def run(self, turns: int) -> None:
        """Until so many more turns have begun and all have ended."""
        last = self.turns + turns
        while self.turns < last or not self.engine.is_idle:
            for conversation in self.conversations:
                if conversation.asked is None and self.turns < last and self.random.random() < 0.3:
                    self._ask(conversation)
            self._step()
            for conversation in self.conversations:
                if conversation.asked is not None and self.random.random() < 0.003:
                    self._cancel(conversation)

    def _ask(self, conversation: Conversation) -> None:
        random = self.random
        if len(conversation.tokens) > LONGEST or random.random() < 0.03:
            conversation.tokens = list(random.choice(self.systems))
        conversation.tokens += [random.randrange(VOCABULARY) for _ in range(random.randint(1, 24))]
        self.turns += 1
        sampling = GREEDY if self.turns % 2 else SamplingSettings(temperature=0.9, seed=self.turns)
        conversation.asked = GenerateRequest(
            request_id=f"t{self.turns}",
            prompt_ids=tuple(conversation.tokens),
            max_tokens=random.randint(1, 40),
            sampling=sampling,
            priority=random.choice([0, 0, 0, 1, -1]),
        )
        conversation.reply = Reply()
        self.engine.submit(conversation.asked)

    def _step(self) -> None:
        by_id = {one.asked.request_id: one for one in self.conversations if one.asked is not None}
        for delivery in self.engine.step():
            conversation = by_id[delivery.request_id]
            conversation.reply.take(delivery)
            if conversation.reply.finish is not None:
                assert conversation.asked is not None
                self.finished.append((conversation.asked, conversation.reply))
                conversation.tokens += conversation.reply.tokens
                conversation.asked = None
        self.engine.scheduler.check_integrity()

    def _cancel(self, conversation: Conversation) -> None:
        assert conversation.asked is not None
        self.engine.cancel(conversation.asked.request_id)
        self.engine.scheduler.check_integrity()
        # What the client has read stays said.
        conversation.tokens += conversation.reply.tokens
        conversation.asked = None
        self.cancelled += 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sizes(engine: Engine, drafts: OnboardDrafts) -> Iterator[int]:
    """Whatever could grow; all of it is empty when nobody is served, but for what the cache keeps."""
    scheduler = engine.scheduler
    yield from (len(scheduler.active), scheduler.waiting, scheduler.pages_in_use, len(drafts._lengths))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_thousand_turns(load_golden: LoadGolden) -> None:
    model = load_golden(Precision.INT8)
    tight = replace(model, settings=replace(model.settings, cache_pages=PAGES, reserve_tokens=1))
    drafts, tallies, random = OnboardDrafts(build_strategy(NgramSettings(max_k=3))), Tallies(), Random(1)
    systems = [[random.randrange(VOCABULARY) for _ in range(length)] for length in (0, 20, 70, 130)]
    soak = Soak(engine=tight.engine(drafts=drafts, metrics=tallies), random=random, systems=systems)
    soak.conversations = [Conversation(tokens=list(random.choice(systems))) for _ in range(12)]
    resident: list[int] = []
    for _ in range(10):
        soak.run(TURNS // 10)
        assert list(sizes(soak.engine, drafts)) == [0, 0, 0, 0]
        assert 0 < soak.engine.scheduler.pages_cached <= PAGES
        resident.append(resident_bytes())

    names = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "pages_evicted", "requests_cancelled")
    print({name: tallies.counters[name] for name in names}, [size // 2**20 for size in resident])
    assert soak.turns == TURNS
    assert len(soak.finished) + soak.cancelled == TURNS
    assert all(tallies.counters[name] > 0 for name in names)
    # The first fifth fills caches of the interpreter and of JAX.
    assert max(resident[2:]) - resident[1] < 16 * 2**20
    for asked, reply in random.sample(soak.finished, SAMPLE):
        fresh = replace(model, settings=replace(model.settings, prefix_cache=False))
        alone = serve(fresh.engine(drafts=NoDrafts(), metrics=Tallies()), [asked])[asked.request_id]
        assert (reply.tokens, reply.finish) == (alone.tokens, alone.finish), asked.request_id
