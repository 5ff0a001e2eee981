"""One exchange with all drafters: real sockets and processes, honest drafters and liars."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from deployments.messages.drafting import (
    AcceptedPrefix,
    Close,
    DraftBlock,
    Forgotten,
    Open,
    Pong,
    ToDrafter,
    ToVerifier,
)
from deployments.messages.generation import Decline
from deployments.verifier.link_counters import (
    EXCHANGE_SECONDS,
    FORGOTTEN,
    LATE,
    LINKS_LOST,
    MALFORMED,
    STALE,
)
from deployments.verifier.link_round import Outcome
from tests.verifier.drafters import drafter_process, echo, fake_drafter, halt
from tests.verifier.engine import VOCABULARY, Engine, delayed, engine_waiting, guesses, opened_by, timed


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_waiting(1.0) as made:
        yield made


@pytest.fixture
def hurried() -> Iterator[Engine]:
    with engine_waiting(0.08) as made:
        yield made


def test_eight_requests_get_their_drafts_from_a_real_drafter(engine: Engine) -> None:
    names = [f"request-{i}" for i in range(8)]
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        assert engine.links.kind == "ngram"
        engine.begin(*names)
        assert guesses(engine.round(2)) == dict.fromkeys(names, (3, 1, 2))
        assert guesses(engine.round(9)) == dict.fromkeys(names, Decline.NO_GUESS)
        assert guesses(engine.round(3, 1, k=2)) == dict.fromkeys(names, (2, 9))
    assert engine.tally.values[EXCHANGE_SECONDS] == 3
    assert engine.tally.values[LATE] == engine.tally.values[STALE] == engine.tally.values[MALFORMED] == 0


def test_what_was_asked_ahead_is_there_when_it_is_wanted(engine: Engine) -> None:
    with fake_drafter(answer=delayed(0.3)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.grow(4)
        engine.links.ask(engine.turns())
        time.sleep(0.4)
        outcomes: dict[str, Outcome] = {}
        assert timed(lambda: outcomes.update(engine.round())) < 0.2
        assert guesses(outcomes) == {"r": (4,)}
        assert guesses(engine.round(5)) == {"r": (5,)}
        assert sum(isinstance(message, AcceptedPrefix) for message in fake.heard) == 2
    assert engine.tally.values[STALE] == engine.tally.values[LATE] == 0


def test_what_was_asked_ahead_and_changed_is_asked_again(engine: Engine) -> None:
    with fake_drafter() as fake:
        engine.connect(fake.endpoint)
        engine.begin("gone", "grown", "same")
        engine.grow(4)
        engine.links.ask(engine.turns())
        engine.links.ask(engine.turns())
        engine.links.close("gone", reason="cancelled")
        del engine.requests["gone"]
        engine.sequences["grown"].append(5)
        engine.begin("new")
        assert guesses(engine.round()) == {"grown": (5,), "same": (4,), "new": (1,)}
        engine.until(lambda: guesses(engine.round(6)) == dict.fromkeys(("grown", "same", "new"), (6,)))
    assert engine.tally.values[LATE] == engine.tally.values[MALFORMED] == 0
    assert engine.tally.values[STALE] == 2


def test_a_drafter_that_dies_after_it_was_asked_ahead(engine: Engine) -> None:
    with fake_drafter(answer=delayed(1.0)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.links.ask(engine.turns())
        fake.hang_up()
        assert timed(lambda: engine.round()) < 0.5
        assert engine.round(4) == {"r": Decline.DRAFTER_UNREACHABLE}
    with fake_drafter(name="other") as other:
        engine.connect(other.endpoint)
        assert guesses(engine.round(6)) == {"r": (6,)}


def test_without_a_drafter_a_round_costs_nothing(engine: Engine) -> None:
    engine.begin("a", "b")
    assert timed(lambda: [engine.round(1) for _ in range(100)]) < 0.5
    assert engine.round(1) == dict.fromkeys("ab", Decline.DRAFTER_UNREACHABLE)
    assert engine.links.kind is None
    engine.links.close("a", reason="done")
    assert engine.links.exchange([]) == {}


def test_what_was_committed_without_asking_goes_in_one_message(engine: Engine) -> None:
    with fake_drafter() as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.grow(4)
        engine.grow(5, 6)
        engine.round(7, k=2)
        engine.round(8)
        engine.links.close("r", reason="done")
        engine.until(lambda: len(fake.heard) == 4)
        first, second, third, last = fake.heard
    assert isinstance(first, Open)
    assert (first.prompt_ids, first.k_max) == ((1, 2, 3, 1), 8)
    assert isinstance(second, AcceptedPrefix)
    assert (second.base_len, second.token_ids, second.k, second.generation) == (4, (4, 5, 6, 7), 2, 1)
    assert isinstance(third, AcceptedPrefix)
    assert (third.base_len, third.token_ids, third.k, third.generation) == (8, (8,), 3, 2)
    assert last == Close(request_id="r", reason="done")


def test_a_drafter_is_asked_for_no_more_than_it_can(engine: Engine) -> None:
    with fake_drafter(max_k=2) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.round(4, k=7)
        engine.until(lambda: len(fake.heard) == 2)
        assert isinstance(fake.heard[1], AcceptedPrefix)
        assert fake.heard[1].k == 2
        assert engine.round(4, k=0) == {"r": Decline.NO_GUESS}
        assert len(fake.heard) == 2


def test_requests_spread_over_drafters_and_move_when_theirs_dies(engine: Engine) -> None:
    names = [f"request-{i}" for i in range(40)]
    with fake_drafter(name="one") as one, fake_drafter(name="two") as two:
        engine.connect(one.endpoint, two.endpoint)
        engine.begin(*names)
        assert guesses(engine.round(4)) == dict.fromkeys(names, (4,))
        engine.until(lambda: len(one.heard) + len(two.heard) == 80)
        ones, twos = opened_by(one), opened_by(two)
        assert ones | twos == set(names)
        assert min(len(ones), len(twos)) >= 8
        one.hang_up()
        assert guesses(engine.round(5)) == {
            name: Decline.DRAFTER_UNREACHABLE if name in ones else (5,) for name in names
        }
        assert engine.links.live == 1
        del two.heard[:]
        assert guesses(engine.round(6)) == dict.fromkeys(names, (6,))
        again = [message for message in two.heard if isinstance(message, Open)]
        assert {message.request_id for message in again} == ones
        assert {message.prompt_ids for message in again} == {(1, 2, 3, 1, 4, 5)}
        engine.connect(one.endpoint, two.endpoint)
        assert guesses(engine.round(7)) == dict.fromkeys(names, (7,))
        assert len(opened_by(two)) == len(ones), "those that moved stay where they are"
    assert engine.tally.values[LINKS_LOST] == 1


def test_a_drafter_killed_in_the_middle_of_an_exchange_ends_the_wait(engine: Engine) -> None:
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin("a", "b")
        assert guesses(engine.round(2)) == dict.fromkeys("ab", (3, 1, 2))
        # Stopped first, so that the exchange is surely under way when it dies.
        halt(drafter.process)
        killer = threading.Timer(0.1, drafter.process.kill)
        killer.start()
        outcomes: dict[str, Outcome] = {}
        took = timed(lambda: outcomes.update(engine.round(3)))
        killer.join()
        assert outcomes == dict.fromkeys("ab", Decline.DRAFTER_UNREACHABLE)
        assert 0.05 < took < 0.9, "neither before it was killed nor at the deadline"
        assert timed(lambda: engine.round(3)) < 0.05
    with drafter_process() as successor:
        engine.connect(successor.endpoint)
        assert guesses(engine.round(1, 2)) == dict.fromkeys("ab", (3, 3, 1)), "it knows the whole sequence"
    assert engine.tally.values[LINKS_LOST] == 1
    assert engine.tally.values[LATE] == 0


def test_a_block_after_the_deadline_is_stale(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        assert engine.round(4) == {"r": Decline.LATE}
        fake.answer = echo
        time.sleep(0.1)
        assert guesses(engine.round(5)) == {"r": (5,)}
    assert (engine.tally.values[LATE], engine.tally.values[STALE]) == (1, 1)
    assert engine.links.live == 1


def test_a_late_block_of_a_request_that_asks_no_more_is_stale_too(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("a")
        assert engine.round(4) == {"a": Decline.LATE}
        engine.requests.pop("a")
        engine.begin("b")
        fake.answer = echo
        time.sleep(0.1)
        assert guesses(engine.round(5)) == {"b": (5,)}
    assert engine.tally.values[STALE] == 1


def block(message: AcceptedPrefix, *tokens: int, **other: int | str) -> DraftBlock:
    fields: dict[str, int | str] = {
        "request_id": message.request_id,
        "base_len": message.base_len + len(message.token_ids),
        "generation": message.generation,
    }
    return DraftBlock(**(fields | other), token_ids=tokens)  # type: ignore[arg-type]  # the fields of both types


LIES: dict[str, tuple[Callable[[AcceptedPrefix], list[ToVerifier]], Decline]] = {
    "too many": (lambda m: [block(m, 1, 2, 3, 4)], Decline.MALFORMED),
    "not in the vocabulary": (lambda m: [block(m, 1, VOCABULARY)], Decline.MALFORMED),
    "negative": (lambda m: [block(m, -1)], Decline.MALFORMED),
    "another length": (lambda m: [block(m, 1, base_len=1)], Decline.STALE),
    "nothing": (lambda m: [block(m)], Decline.NO_GUESS),
    "forgotten": (lambda m: [Forgotten(request_id=m.request_id)], Decline.FORGOTTEN),
    "another request": (lambda m: [block(m, 1, request_id="x")], Decline.LATE),
    "another round": (lambda m: [block(m, 1, generation=99)], Decline.LATE),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_reaches_the_window(hurried: Engine, lie: str) -> None:
    engine = hurried
    tell, outcome = LIES[lie]
    with fake_drafter() as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        fake.answer = lambda message: tell(message) if isinstance(message, AcceptedPrefix) else []
        assert engine.round(4) == {"r": outcome}
        fake.answer = echo
        assert guesses(engine.round(5)) == {"r": (5,)}
        assert engine.links.live == 1
    counted = {counter: engine.tally.values[counter] for counter in (MALFORMED, STALE, FORGOTTEN)}
    expected = {
        Decline.MALFORMED: MALFORMED,
        Decline.LATE: MALFORMED,
        Decline.STALE: STALE,
        Decline.FORGOTTEN: FORGOTTEN,
    }.get(outcome)
    assert counted == {counter: int(counter == expected) for counter in counted}


def test_a_forgotten_request_is_opened_again(engine: Engine) -> None:
    with fake_drafter() as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.round(4)
        fake.answer = lambda message: [Forgotten(request_id="r")]
        engine.round(5)
        fake.answer = echo
        del fake.heard[:]
        assert guesses(engine.round(6)) == {"r": (6,)}
        assert isinstance(fake.heard[0], Open)
        assert fake.heard[0].prompt_ids == (1, 2, 3, 1, 4, 5)


def test_a_drafter_that_answers_more_than_was_asked_disturbs_nobody(engine: Engine) -> None:
    def chatter(message: ToDrafter) -> list[ToVerifier]:
        return [Pong(nonce=3), *echo(message), *echo(message), Forgotten(request_id="x"), Pong(nonce=4)]

    with fake_drafter(answer=chatter) as fake:
        engine.connect(fake.endpoint)
        engine.begin("a", "b")
        for token in range(20):
            assert guesses(engine.round(token)) == dict.fromkeys("ab", (token,))


def test_one_exchange_takes_well_under_a_millisecond(engine: Engine) -> None:
    """Generous, because the machine may be busy; the figure of a quiet one is in the bench."""
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin(*(f"request-{i}" for i in range(8)))
        times = sorted(timed(lambda: engine.round(2)) for _ in range(200))
    assert times[100] < 0.005
