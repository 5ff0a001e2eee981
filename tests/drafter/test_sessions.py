"""Sessions against a naive model of the rules, and the bounds that keep a replica small."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.drafter.counters import COUNTERS, EVICTED, FORGOTTEN, SESSIONS, TOKENS_HELD
from deployments.drafter.sessions import SessionLimits, Sessions
from deployments.lm.drafting.strategy import DraftShape, Proposal, StrategyTraits
from deployments.messages.drafting import AcceptedPrefix, Close, DraftBlock, Forgotten, Open
from deployments.messages.errors import ProtocolError
from deployments.messages.generation import SamplingSettings
from tests.drafter.tally import Tally

LIMITS = SessionLimits(sessions=3, tokens=24, sequence=12)


class Mirror:
    """A strategy that proposes the length and the sum of what it was told, and trusts no caller."""

    traits = StrategyTraits(kind="mirror", shape=DraftShape.CHAIN, needs_features=False, max_k=8)

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}

    def open(self, message: Open, /) -> None:
        self.held[message.request_id] = list(message.prompt_ids)

    def commit(self, message: AcceptedPrefix, /) -> None:
        tokens = self.held[message.request_id]
        assert message.base_len == len(tokens)
        assert message.token_ids
        tokens.extend(message.token_ids)

    def propose(self, request_id: str, /, *, k: int) -> Proposal:
        tokens = self.held[request_id]
        return Proposal(token_ids=(len(tokens), sum(tokens))[:k])

    def close(self, request_id: str, /) -> None:
        self.held.pop(request_id, None)


class Model:
    """The rules, written for reading: a list of sessions, the one used last at the end."""

    def __init__(self) -> None:
        self.sessions: list[tuple[int, str, list[int]]] = []

    def find(self, message: Open | AcceptedPrefix | Close, *, connection: int) -> list[int] | None:
        for owner, request_id, tokens in self.sessions:
            if (owner, request_id) == (connection, message.request_id):
                return tokens
        return None

    def remove(self, message: Open | AcceptedPrefix | Close, *, connection: int) -> None:
        self.sessions = [one for one in self.sessions if one[:2] != (connection, message.request_id)]

    def touch(self, message: Open | AcceptedPrefix, *, connection: int, tokens: list[int]) -> None:
        self.remove(message, connection=connection)
        self.sessions.append((connection, message.request_id, tokens))
        while len(self.sessions) > LIMITS.sessions or sum(len(one[2]) for one in self.sessions) > LIMITS.tokens:
            self.sessions.pop(0)

    def handle(self, message: Open | AcceptedPrefix | Close, *, connection: int) -> DraftBlock | Forgotten | None:
        tokens = self.find(message, connection=connection)
        if isinstance(message, Close):
            self.remove(message, connection=connection)
        elif isinstance(message, Open):
            self.remove(message, connection=connection)
            if len(message.prompt_ids) <= LIMITS.sequence:
                self.touch(message, connection=connection, tokens=list(message.prompt_ids))
        else:
            return self.commit(message, connection=connection, tokens=tokens)
        return None

    def commit(
        self, message: AcceptedPrefix, *, connection: int, tokens: list[int] | None
    ) -> DraftBlock | Forgotten | None:
        proposed = None if tokens is None else tokens[: message.base_len] + list(message.token_ids)
        wrong = (
            tokens is None
            or proposed is None
            or message.base_len > len(tokens)
            or len(proposed) > LIMITS.sequence
            or any(a != b for a, b in zip(tokens, proposed, strict=False))
        )
        if wrong or tokens is None or proposed is None:
            self.remove(message, connection=connection)
            return Forgotten(request_id=message.request_id)
        longer = proposed if len(proposed) > len(tokens) else tokens
        self.touch(message, connection=connection, tokens=longer)
        if not message.k:
            return None
        return DraftBlock(
            request_id=message.request_id,
            base_len=len(longer),
            generation=message.generation,
            token_ids=(len(longer), sum(longer))[: message.k],
        )


def opened(request_id: str, *prompt: int) -> Open:
    return Open(request_id=request_id, prompt_ids=prompt, sampling=SamplingSettings(), choice=0, k_max=8)


def commit(request_id: str, base_len: int, *tokens: int, k: int = 8, generation: int = 1) -> AcceptedPrefix:
    return AcceptedPrefix(
        request_id=request_id, base_len=base_len, token_ids=tokens, accepted=0, generation=generation, k=k
    )


NAMES = st.sampled_from("abc")
# Two token values, so that repeats are often equal and often not.
PROMPTS = st.lists(st.integers(0, 1), max_size=14)
MESSAGES = st.one_of(
    st.builds(lambda name, prompt: opened(name, *prompt), NAMES, PROMPTS),
    st.builds(
        lambda name, base, tokens, k, generation: commit(name, base, *tokens, k=k, generation=generation),
        NAMES,
        st.integers(0, 13),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    st.builds(lambda name: Close(request_id=name, reason="done"), NAMES),
)


def handle(sessions: Sessions, message: Open | AcceptedPrefix | Close, *, connection: int) -> Any:
    match message:
        case Open():
            return sessions.open(message, connection=connection)
        case AcceptedPrefix():
            return sessions.commit(message, connection=connection)
        case Close():
            return sessions.close(message, connection=connection)


@settings(max_examples=300, deadline=None)
@given(script=st.lists(st.tuples(st.integers(1, 2), MESSAGES), max_size=40), follow=st.booleans())
def test_any_script_is_answered_as_the_rules_say(
    script: list[tuple[int, Open | AcceptedPrefix | Close]], follow: bool
) -> None:
    strategy, model = Mirror(), Model()
    sessions = Sessions(strategy=strategy, metrics=Tally(COUNTERS), limits=LIMITS)
    for connection, message in script:
        known = model.find(message, connection=connection)
        if follow and isinstance(message, AcceptedPrefix) and known is not None:
            # Random places are nearly always gaps; half of the runs move them to where a real verifier would commit.
            message = commit(message.request_id, max(0, len(known) - message.base_len % 3), *message.token_ids)
        assert handle(sessions, message, connection=connection) == model.handle(message, connection=connection)
        assert len(sessions) == len(model.sessions) <= LIMITS.sessions
        assert sessions.tokens_held == sum(len(one[2]) for one in model.sessions) <= LIMITS.tokens
        assert sorted(strategy.held.values()) == sorted(one[2] for one in model.sessions)


Build = Callable[[], tuple[Sessions, Mirror, Tally]]


@pytest.fixture
def build() -> Build:
    def make() -> tuple[Sessions, Mirror, Tally]:
        strategy, tally = Mirror(), Tally(COUNTERS)
        return Sessions(strategy=strategy, metrics=tally, limits=LIMITS), strategy, tally

    return make


def test_a_duplicate_changes_nothing_and_is_answered_again(build: Build) -> None:
    sessions, strategy, _ = build()
    sessions.open(opened("r", 1, 2), connection=1)
    message = commit("r", 2, 3, 4, generation=7)
    first = sessions.commit(message, connection=1)
    assert first == DraftBlock(request_id="r", base_len=4, generation=7, token_ids=(4, 10))
    assert sessions.commit(message, connection=1) == first
    assert strategy.held == {"1/r": [1, 2, 3, 4]}
    earlier = sessions.commit(commit("r", 1, 2, generation=5), connection=1)
    assert earlier == DraftBlock(request_id="r", base_len=4, generation=5, token_ids=(4, 10)), "the length it has now"
    assert sessions.commit(commit("r", 2, 3, 4, k=0), connection=1) is None


@pytest.mark.parametrize("message", [commit("r", 3, 9), commit("r", 1, 9), commit("r", 0, 1, 2, 9), commit("x", 0, 1)])
def test_a_gap_a_difference_or_an_unknown_request_is_forgotten(build: Build, message: AcceptedPrefix) -> None:
    sessions, strategy, tally = build()
    sessions.open(opened("r", 1, 2), connection=1)
    if message.base_len + len(message.token_ids) == 3:
        sessions.commit(commit("r", 2, 3), connection=1)
    assert sessions.commit(message, connection=1) == Forgotten(request_id=message.request_id)
    assert ("1/r" in strategy.held) == (message.request_id == "x")
    assert tally.values[FORGOTTEN] == 1


def test_connections_do_not_share_requests(build: Build) -> None:
    sessions, strategy, _ = build()
    sessions.open(opened("r", 1), connection=1)
    sessions.open(opened("r", 5), connection=2)
    assert sessions.commit(commit("r", 1, 2), connection=3) == Forgotten(request_id="r")
    sessions.close_connection(1)
    assert strategy.held == {"2/r": [5]}
    assert sessions.commit(commit("r", 1, 2), connection=1) == Forgotten(request_id="r")


def test_the_session_unused_for_longest_makes_room(build: Build) -> None:
    sessions, _, tally = build()
    for name in "abc":
        sessions.open(opened(name, 1), connection=1)
    sessions.commit(commit("a", 1, 2), connection=1)
    sessions.open(opened("d", 1), connection=1)
    assert sessions.commit(commit("b", 1, 2), connection=1) == Forgotten(request_id="b")
    assert isinstance(sessions.commit(commit("a", 2, 3), connection=1), DraftBlock)
    sessions.publish()
    assert (tally.values[EVICTED], tally.values[SESSIONS], tally.values[TOKENS_HELD]) == (1, 3, 5)


def test_a_request_that_is_too_long_is_not_held(build: Build) -> None:
    sessions, strategy, _ = build()
    sessions.open(opened("r", *range(13)), connection=1)
    assert not strategy.held
    assert sessions.commit(commit("r", 13, 1), connection=1) == Forgotten(request_id="r")
    sessions.open(opened("r", *range(12)), connection=1)
    assert sessions.commit(commit("r", 12, 1), connection=1) == Forgotten(request_id="r")
    assert (sessions.tokens_held, strategy.held) == (0, {})


@pytest.mark.parametrize(
    "message",
    [
        commit("r", 1),
        commit("r", -1, 1),
        commit("r", 1, 1, k=-1),
        commit("r", 1, -1),
        commit("r", 1, 2**32),
        commit("r", 1, 2**63),
        opened("r", 1, -1),
        opened("r", 2**40),
        opened("r" * 257, 1),
    ],
)
def test_what_no_honest_verifier_sends_breaks_the_protocol(build: Build, message: Open | AcceptedPrefix) -> None:
    sessions, _, _ = build()
    sessions.open(opened("r", 1), connection=1)
    with pytest.raises(ProtocolError):
        handle(sessions, message, connection=1)
