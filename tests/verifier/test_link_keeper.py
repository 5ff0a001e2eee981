"""Drafters that come, hang, return and vanish: what the background thread does, seen from the engine."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from deployments.messages.drafting import (
    AcceptedPrefix,
    Close,
    DrafterEndpoint,
    Ping,
    ToDrafter,
    ToVerifier,
)
from deployments.messages.generation import Decline
from deployments.verifier.link_counters import (
    CONNECTS,
    LATE,
    LINKS_LIVE,
    LINKS_PARKED,
    MALFORMED,
)
from tests.verifier.drafters import drafter_process, echo, fake_drafter, halt
from tests.verifier.engine import Engine, delayed, engine_waiting, guesses, opened_by, timed, without_pings


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_waiting(1.0) as made:
        yield made


@pytest.fixture
def hurried() -> Iterator[Engine]:
    with engine_waiting(0.08) as made:
        yield made


def test_a_drafter_that_hangs_is_left_alone_and_comes_back(hurried: Engine) -> None:
    engine = hurried
    with drafter_process() as drafter:
        engine.connect(drafter.endpoint)
        engine.begin("a", "b")
        engine.until(lambda: guesses(engine.round(2)) == dict.fromkeys("ab", (2, 2, 2)))
        halt(drafter.process)
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
        assert engine.round(8) == {"b": Decline.DRAFTER_UNREACHABLE}
        assert guesses(engine.round(9)) == {"b": (9,)}
        assert opened_by(quick) == {"b"}


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
        assert engine.round(4) == {"r": Decline.DRAFTER_UNREACHABLE}
        assert (engine.links.live, engine.tally.values[MALFORMED], engine.tally.values[LINKS_LIVE]) == (0, 1, 0)
        time.sleep(0.1)
        assert engine.links.live == 0
        bad.answer = echo
        engine.connect(bad.endpoint)
        assert guesses(engine.round(4)) == {"r": (4,)}


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
        assert engine.round(5) == {"r": Decline.DRAFTER_UNREACHABLE}


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
        assert engine.round(4) == {"r": Decline.DRAFTER_UNREACHABLE}
        engine.links.update([fake.endpoint])
        time.sleep(0.1)
        assert engine.links.live == 0
        engine.links.shut()
