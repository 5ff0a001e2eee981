"""A verifier's engine reduced to what the links see of it, and what tests of them ask again and again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.messages.drafting import (
    AcceptedPrefix,
    DraftBlock,
    DrafterEndpoint,
    Open,
    Ping,
    ToDrafter,
    ToVerifier,
)
from deployments.messages.generation import GenerateRequest
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link_counters import (
    LINK_COUNTERS,
)
from deployments.verifier.link_round import Outcome
from deployments.verifier.links import DrafterLinks, LinkSettings
from tests.drafter.tally import Tally
from tests.verifier.drafters import FakeDrafter, echo

VOCABULARY = 100


class Engine:
    """A verifier's side of it: links, and requests that grow."""

    def __init__(self, *, deadline_s: float) -> None:
        self.tally = Tally(LINK_COUNTERS)
        settings = LinkSettings(verifier="v", vocab_size=VOCABULARY, k_max=8, deadline_s=deadline_s)
        self.links = DrafterLinks(settings=settings, metrics=self.tally)
        self.requests: dict[str, GenerateRequest] = {}
        self.sequences: dict[str, list[int]] = {}

    def begin(self, *names: str, prompt: tuple[int, ...] = (1, 2, 3, 1)) -> None:
        for name in names:
            self.requests[name] = GenerateRequest(request_id=name, prompt_ids=prompt, max_tokens=9)
            self.sequences[name] = list(prompt)
            self.links.begin(self.requests[name])

    def grow(self, *tokens: int) -> None:
        for sequence in self.sequences.values():
            sequence.extend(tokens)

    def round(self, *tokens: int, k: int = 3) -> dict[str, Outcome]:
        """Every request grows by `tokens` and asks for drafts."""
        self.grow(*tokens)
        return self.links.exchange(self.turns(k=k))

    def turns(self, *, k: int = 3) -> list[DraftWanted]:
        return [DraftWanted(request=self.requests[name], sequence=self.sequences[name], k=k) for name in self.requests]

    def connect(self, *endpoints: DrafterEndpoint) -> None:
        self.links.update(endpoints)
        self.until(lambda: self.links.live == len(endpoints))

    def until(self, condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.005)


@contextmanager
def engine_waiting(deadline_s: float, /) -> Iterator[Engine]:
    made = Engine(deadline_s=deadline_s)
    try:
        yield made
    finally:
        made.links.shut()


def guesses(outcomes: dict[str, Outcome]) -> dict[str, tuple[int, ...] | str]:
    return {
        name: outcome.token_ids if isinstance(outcome, DraftBlock) else outcome for name, outcome in outcomes.items()
    }


def timed(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


def without_pings(fake: FakeDrafter) -> list[ToDrafter]:
    return [message for message in fake.heard if not isinstance(message, Ping)]


def opened_by(fake: FakeDrafter) -> set[str]:
    return {message.request_id for message in fake.heard if isinstance(message, Open)}


def delayed(seconds: float) -> Callable[[ToDrafter], list[ToVerifier]]:
    """Answers pings at once and everything else late."""

    def answer(message: ToDrafter) -> list[ToVerifier]:
        if isinstance(message, AcceptedPrefix):
            time.sleep(seconds)
        return echo(message)

    return answer
