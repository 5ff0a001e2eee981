"""All links together, as the engine uses them: real sockets, real processes, and every way a drafter can fail."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from deployments.messages.drafting import (
    AcceptedPrefix,
    Close,
    DraftBlock,
    DrafterEndpoint,
    Forgotten,
    Open,
    Ping,
    Pong,
    ToDrafter,
    ToVerifier,
)
from deployments.messages.generation import GenerateRequest
from deployments.verifier.link_counters import (
    CONNECTS,
    EXCHANGE_SECONDS,
    FORGOTTEN,
    LATE,
    LINK_COUNTERS,
    LINKS_LIVE,
    LINKS_LOST,
    LINKS_PARKED,
    MALFORMED,
    STALE,
)
from deployments.verifier.link_ledger import Decline, Turn
from deployments.verifier.links import DrafterLinks, LinkSettings, Outcome
from tests.drafter.tally import Tally
from tests.verifier.drafters import FakeDrafter, drafter_process, echo, fake_drafter

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
        turns = [Turn(request=self.requests[name], sequence=self.sequences[name], k=k) for name in self.requests]
        return self.links.exchange(turns)

    def connect(self, *endpoints: DrafterEndpoint) -> None:
        self.links.update(endpoints)
        self.until(lambda: self.links.live == len(endpoints))

    def until(self, condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.005)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(deadline_s=1.0)
    yield made
    made.links.shut()


@pytest.fixture
def hurried() -> Iterator[Engine]:
    """One that waits for 80 ms only."""
    made = Engine(deadline_s=0.08)
    yield made
    made.links.shut()


def guesses(outcomes: dict[str, Outcome]) -> dict[str, tuple[int, ...] | str]:
    return {
        name: outcome.token_ids if isinstance(outcome, DraftBlock) else outcome for name, outcome in outcomes.items()
    }


def timed(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


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


def test_without_a_drafter_a_round_costs_nothing(engine: Engine) -> None:
    engine.begin("a", "b")
    assert timed(lambda: [engine.round(1) for _ in range(100)]) < 0.5
    assert engine.round(1) == dict.fromkeys("ab", Decline.UNREACHABLE)
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
        assert guesses(engine.round(5)) == {name: Decline.UNREACHABLE if name in ones else (5,) for name in names}
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


def without_pings(fake: FakeDrafter) -> list[ToDrafter]:
    return [message for message in fake.heard if not isinstance(message, Ping)]


def opened_by(fake: FakeDrafter) -> set[str]:
    return {message.request_id for message in fake.heard if isinstance(message, Open)}


def test_a_drafter_killed_in_the_middle_of_an_exchange_ends_the_wait(engine: Engine) -> None:
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin("a", "b")
        assert guesses(engine.round(2)) == dict.fromkeys("ab", (3, 1, 2))
        # Stopped first, so that the exchange is surely under way when it dies.
        drafter.process.send_signal(signal.SIGSTOP)
        killer = threading.Timer(0.1, drafter.process.kill)
        killer.start()
        outcomes: dict[str, Outcome] = {}
        took = timed(lambda: outcomes.update(engine.round(3)))
        killer.join()
        assert outcomes == dict.fromkeys("ab", Decline.UNREACHABLE)
        assert 0.05 < took < 0.9, "neither before it was killed nor at the deadline"
        assert timed(lambda: engine.round(3)) < 0.05
    with drafter_process() as successor:
        engine.connect(successor.endpoint)
        assert guesses(engine.round(1, 2)) == dict.fromkeys("ab", (3, 3, 1)), "it knows the whole sequence"
    assert engine.tally.values[LINKS_LOST] == 1
    assert engine.tally.values[LATE] == 0


def test_a_drafter_that_hangs_is_left_alone_and_comes_back(hurried: Engine) -> None:
    engine = hurried
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin("a", "b")
        engine.until(lambda: guesses(engine.round(2)) == dict.fromkeys("ab", (2, 2, 2)))
        drafter.process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            assert engine.links.live == 1
            took = timed(lambda: engine.round(9, 8))
            assert 0.03 < took < 0.3
        assert (engine.tally.values[LATE], engine.tally.values[LINKS_PARKED]) == (6, 1)
        assert timed(lambda: [engine.round(7) for _ in range(20)]) < 0.1
        time.sleep(0.6)
        assert engine.links.live == 0, "it does not answer, so it is not asked"
        drafter.process.send_signal(signal.SIGCONT)
        engine.until(lambda: engine.links.live == 1)
        assert guesses(engine.round(9, 8)) == dict.fromkeys("ab", (7, 7, 7)), "it was told what it missed"
    assert engine.tally.values[f"{CONNECTS}:restored"] == 1
    assert engine.tally.values[LINKS_PARKED] == 0


def test_a_drafter_that_comes_back_is_told_what_it_missed_and_what_ended(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12), name="slow") as slow, fake_drafter(name="quick") as quick:
        engine.connect(slow.endpoint)
        engine.begin("a", "b")
        for token in (4, 5, 6):
            assert engine.round(token) == dict.fromkeys("ab", Decline.LATE)
        engine.links.close("a", reason="done")
        engine.requests.pop("a")
        slow.answer = echo
        engine.until(lambda: engine.links.live == 1)
        engine.until(lambda: len(without_pings(slow)) == 9)
        assert guesses(engine.round(7)) == {"b": (7,)}
        missed = without_pings(slow)[8:]
        assert [type(message) for message in missed] == [Close, AcceptedPrefix], "neither is opened again"
        engine.connect(slow.endpoint, quick.endpoint)
        slow.hang_up()
        assert engine.round(8) == {"b": Decline.UNREACHABLE}
        assert guesses(engine.round(9)) == {"b": (9,)}
        assert opened_by(quick) == {"b"}


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


def delayed(seconds: float) -> Callable[[ToDrafter], list[ToVerifier]]:
    """Answers pings at once and everything else late."""

    def answer(message: ToDrafter) -> list[ToVerifier]:
        if isinstance(message, AcceptedPrefix):
            time.sleep(seconds)
        return echo(message)

    return answer


def test_a_drafter_that_is_always_late_but_answers_pings_costs_ever_fewer_rounds(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        late, deadline = 0, time.monotonic() + 3
        while time.monotonic() < deadline:
            late += engine.round(4) == {"r": Decline.LATE}
            time.sleep(0.005)
    assert 4 <= late <= 6, "three, then one each time it comes back: after 0.25, 0.5, 1 and 2 seconds"


def test_garbage_breaks_the_link_until_discovery_lists_it_again(engine: Engine) -> None:
    with fake_drafter(answer=lambda _: b"\x07\x00\x00\x00garbage", name="bad") as bad:
        engine.connect(bad.endpoint)
        engine.begin("r")
        engine.until(lambda: bool(bad.heard))
        assert timed(lambda: engine.round(4)) < 0.5
        assert engine.round(4) == {"r": Decline.UNREACHABLE}
        assert (engine.links.live, engine.tally.values[MALFORMED], engine.tally.values[LINKS_LIVE]) == (0, 1, 0)
        time.sleep(0.1)
        assert engine.links.live == 0
        bad.answer = echo
        engine.connect(bad.endpoint)
        assert guesses(engine.round(4)) == {"r": (4,)}


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


def test_a_drafter_that_stops_reading_blocks_nobody(hurried: Engine) -> None:
    engine = hurried
    asleep = threading.Event()

    def sleep(message: ToDrafter) -> list[ToVerifier]:
        asleep.wait(10)
        return echo(message)

    with fake_drafter(answer=sleep) as fake:
        engine.connect(fake.endpoint)
        prompt = tuple(range(70_000, 170_000))
        took = [timed(partial(engine.begin, f"r{i}", prompt=prompt)) for i in range(30)]
        assert max(took) < 0.2
        took = [timed(lambda: engine.round(5)) for _ in range(3)]
        assert max(took) < 0.2
        assert engine.links.live == 0
        assert engine.tally.values[LATE] == 90
        asleep.set()
        engine.until(lambda: engine.links.live == 1)
        engine.until(lambda: guesses(engine.round(5)) == dict.fromkeys(engine.requests, (5,)), within_s=20)


def test_a_drafter_that_discovery_no_longer_lists_is_dropped(engine: Engine) -> None:
    with fake_drafter(name="one") as one, fake_drafter(name="two") as two:
        engine.connect(one.endpoint, two.endpoint)
        engine.connect(two.endpoint)
        engine.begin("r")
        assert guesses(engine.round(4)) == {"r": (4,)}
        assert not opened_by(one)
        engine.connect()
        assert engine.round(5) == {"r": Decline.UNREACHABLE}


def test_a_parked_drafter_that_discovery_no_longer_lists_is_dropped(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        for _ in range(3):
            engine.round(4)
        assert engine.tally.values[LINKS_PARKED] == 1
        engine.links.update([])
        engine.until(lambda: engine.tally.values[LINKS_PARKED] == 0)
        time.sleep(0.4)
        assert engine.links.live == 0
        assert not any(isinstance(message, Ping) for message in fake.heard)


def test_a_parked_drafter_that_dies_is_connected_to_again_when_listed(hurried: Engine) -> None:
    engine = hurried
    with fake_drafter(answer=delayed(0.12)) as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        for _ in range(3):
            engine.round(4)
        fake.hang_up()
        engine.until(lambda: engine.tally.values[LINKS_PARKED] == 0)
        fake.answer = echo
        engine.connect(fake.endpoint)
        assert guesses(engine.round(5)) == {"r": (5,)}


def test_an_endpoint_that_says_nothing_delays_neither_rounds_nor_others(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, fake_drafter() as fake:
        mute = DrafterEndpoint(replica="m", host="127.0.0.1", port=silent.getsockname()[1], secret="s")
        assert timed(lambda: engine.links.update([mute, fake.endpoint])) < 0.1
        engine.begin("r")
        engine.until(lambda: engine.links.live == 1)
        assert guesses(engine.round(4)) == {"r": (4,)}
        engine.until(lambda: engine.tally.values[f"{CONNECTS}:failed"] == 1)
        for _ in range(20):
            engine.links.update([mute, fake.endpoint])
            time.sleep(0.01)
        assert engine.tally.values[f"{CONNECTS}:failed"] == 1, "it is tried less often after it failed"
        assert engine.links.live == 1


def test_shutting_leaves_no_thread_and_no_link() -> None:
    engine = Engine(deadline_s=1.0)
    before = set(threading.enumerate())
    with fake_drafter() as fake:
        engine.connect(fake.endpoint)
        engine.begin("r")
        engine.links.shut()
        assert {thread.name for thread in set(threading.enumerate()) - before} & {"drafter-links"} == set()
        assert engine.round(4) == {"r": Decline.UNREACHABLE}
        engine.links.update([fake.endpoint])
        time.sleep(0.1)
        assert engine.links.live == 0
        engine.links.shut()


def test_one_exchange_takes_well_under_a_millisecond(engine: Engine) -> None:
    """Generous, because the machine may be busy; the figure of a quiet one is in the bench."""
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin(*(f"request-{i}" for i in range(8)))
        times = sorted(timed(lambda: engine.round(2)) for _ in range(200))
    assert times[100] < 0.005
