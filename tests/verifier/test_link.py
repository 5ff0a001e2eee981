"""One connection to a drafter: every way it can go wrong, with real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from deployments.messages.drafting import DrafterEndpoint, Open, Ping, Pong, ToDrafter, ToVerifier, Welcome
from deployments.messages.errors import Unavailable
from deployments.messages.frames import encode_frames
from deployments.messages.generation import SamplingSettings
from deployments.verifier.link import Breakage, DrafterLink, wait_for
from tests.verifier.drafters import FakeDrafter, drafter_process, echo, fake_drafter


def connect(endpoint: DrafterEndpoint, *, timeout_s: float = 2.0) -> DrafterLink:
    return DrafterLink.connect(endpoint, verifier="v", timeout_s=timeout_s)


def read_until(link: DrafterLink, *, count: int) -> list[ToVerifier]:
    messages: list[ToVerifier] = []
    deadline = time.monotonic() + 5
    while len(messages) < count and link.broken is None and time.monotonic() < deadline:
        wait_for([link], timeout_s=0.1)
        messages += link.read()
    return messages


def read_until_broken(link: DrafterLink) -> list[ToVerifier]:
    return read_until(link, count=10**9)


@pytest.fixture
def fake() -> Iterator[FakeDrafter]:
    with fake_drafter() as made:
        yield made


@pytest.fixture
def link(fake: FakeDrafter) -> Iterator[DrafterLink]:
    made = connect(fake.endpoint)
    yield made
    made.close()


def test_it_connects_and_learns_who_drafts(link: DrafterLink) -> None:
    assert link.welcome == Welcome(drafter="fake", kind="fake", max_k=8)
    link.send([Ping(nonce=3), Ping(nonce=4)])
    assert read_until(link, count=2) == [Pong(nonce=3), Pong(nonce=4)]
    assert link.read() == [], "reading does not wait"
    assert link.broken is None


def test_a_real_drafter_refuses_a_wrong_secret() -> None:
    with drafter_process() as drafter:
        right = drafter.endpoint
        connect(right).close()
        wrong = DrafterEndpoint(replica="r", host=right.host, port=right.port, secret="wrong")
        with pytest.raises(Unavailable, match="did not welcome"):
            connect(wrong)


FIRST_WORDS = {
    "garbage": b"\x03\x00\x00\x00abc",
    "a long frame": b"\x00\x00\x10\x00",
    "another message": encode_frames([Pong(nonce=1)]),
    "no drafts at all": encode_frames([Welcome(drafter="d", kind="k", max_k=0)]),
    "half a welcome": encode_frames([Welcome(drafter="d", kind="k", max_k=1)])[:-1],
    "nothing": b"",
}


@pytest.mark.parametrize("words", FIRST_WORDS)
def test_who_does_not_welcome_is_no_drafter(words: str) -> None:
    with fake_drafter(first_words=FIRST_WORDS[words]) as fake:
        started = time.monotonic()
        with pytest.raises(Unavailable, match="did not welcome"):
            connect(fake.endpoint, timeout_s=0.3)
        assert time.monotonic() - started < 1.0


def test_a_welcome_that_comes_drop_by_drop_does_not_extend_the_time_limit() -> None:
    drops = 0

    def drip() -> None:
        nonlocal drops
        with listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(b"\xff\x00\x00\x00")
            while drops < 100:
                connection.sendall(b"\x00")
                drops += 1
                time.sleep(0.03)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = DrafterEndpoint(replica="r", host="127.0.0.1", port=listener.getsockname()[1], secret="s")
        thread = threading.Thread(target=drip)
        thread.start()
        started = time.monotonic()
        with pytest.raises(Unavailable, match="did not welcome"):
            connect(endpoint, timeout_s=0.3)
        assert time.monotonic() - started < 1.0
        thread.join()
    assert 3 <= drops < 100


@pytest.mark.parametrize("host", ["127.0.0.1", "a" * 64 + ".invalid", ""])
def test_an_address_where_nobody_listens_is_said_so(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match="is it running"):
        connect(DrafterEndpoint(replica="r", host=host, port=port, secret="s"))


def test_a_port_that_does_not_exist_is_said_so() -> None:
    with pytest.raises(Unavailable, match="is it running"):
        connect(DrafterEndpoint(replica="r", host="127.0.0.1", port=70000, secret="s"))


def test_a_drafter_that_hangs_up_breaks_the_link(fake: FakeDrafter, link: DrafterLink) -> None:
    fake.hang_up()
    assert read_until_broken(link) == []
    assert link.broken is Breakage.GONE
    link.send([Ping(nonce=1)])
    link.flush()
    assert link.read() == []
    assert not link.ping(timeout_s=0.1)
    link.close()
    assert link.broken is Breakage.GONE


def test_sending_to_a_killed_process_breaks_the_link_and_nothing_else() -> None:
    with drafter_process() as drafter:
        link = connect(drafter.endpoint)
        assert link.ping(timeout_s=2.0)
        drafter.process.kill()
        drafter.process.wait()
        for _ in range(3):
            link.send([Ping(nonce=1)])
            link.read()
        assert link.broken is Breakage.GONE


@pytest.mark.parametrize("garbage", [b"\x03\x00\x00\x00abc", b"\x00\x00\x10\x00", b"HTTP/1.1 400 Bad Request"])
def test_garbage_breaks_the_link_after_what_came_before(garbage: bytes) -> None:
    with fake_drafter(answer=lambda _: encode_frames([Pong(nonce=1)]) + garbage) as fake:
        link = connect(fake.endpoint)
        link.send([Ping(nonce=1)])
        assert read_until_broken(link) == [Pong(nonce=1)]
        assert link.broken is Breakage.MALFORMED


def test_half_a_frame_waits_for_the_other_half() -> None:
    whole = encode_frames([Pong(nonce=7)])
    halves = iter([whole[:5], whole[5:]])
    with fake_drafter(answer=lambda _: next(halves)) as fake:
        link = connect(fake.endpoint)
        link.send([Ping(nonce=0)])
        assert wait_for([link], timeout_s=2.0) == [link]
        assert link.read() == []
        link.send([Ping(nonce=0)])
        assert read_until(link, count=1) == [Pong(nonce=7)]
        link.close()


def test_a_peer_that_stops_reading_never_blocks_and_soon_gets_no_more() -> None:
    prompt = Open(request_id="r", prompt_ids=(70_000,) * 100_000, sampling=SamplingSettings(), choice=0, k_max=8)

    def sleep(message: ToDrafter) -> list[ToVerifier]:
        asleep.wait(10)
        return echo(message)

    asleep = threading.Event()
    with fake_drafter(answer=sleep) as fake:
        link = connect(fake.endpoint)
        sends = 0
        slowest = 0.0
        while not link.is_choked and sends < 100:
            started = time.monotonic()
            link.send([prompt])
            slowest = max(slowest, time.monotonic() - started)
            sends += 1
        assert link.is_choked
        assert link.has_unsent
        assert slowest < 0.2
        assert not link.ping(timeout_s=0.05)
        asleep.set()
        deadline = time.monotonic() + 5
        while link.has_unsent and time.monotonic() < deadline:
            wait_for([link], timeout_s=0.1)
            link.flush()
        assert link.ping(timeout_s=5.0), "all of it arrives once the peer reads again"
        assert sum(isinstance(message, Open) for message in fake.heard) == sends
        link.close()


def test_a_ping_is_answered_by_its_own_pong_only() -> None:
    with fake_drafter(answer=lambda _: [Pong(nonce=99)]) as fake:
        link = connect(fake.endpoint)
        started = time.monotonic()
        assert not link.ping(timeout_s=0.1)
        assert 0.09 < time.monotonic() - started < 1.0
        fake.answer = echo
        assert link.ping(timeout_s=2.0)
        link.close()
