"""The socket with real connections: what honest verifiers get, and what the others cost."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from deployments.drafter.counters import BLOCKS, CONNECTIONS, COUNTERS, MALFORMED, REFUSED, SESSIONS
from deployments.drafter.server import DraftSocket, ServerLimits
from deployments.drafter.sessions import SessionLimits, Sessions
from deployments.lm.drafting.ngram import NgramSettings, NgramStrategy
from deployments.messages.drafting import (
    AcceptedPrefix,
    Close,
    DraftBlock,
    Forgotten,
    Hello,
    Open,
    Ping,
    Pong,
    ToDrafter,
    ToVerifier,
    Welcome,
)
from deployments.messages.frames import MAX_FRAME, FrameReader, encode_frames, read_for_verifier
from deployments.messages.generation import SamplingSettings
from tests.drafter.tally import Tally

SECRET = "correct horse"
WELCOME = Welcome(drafter="d", kind="ngram", max_k=8)
LIMITS = ServerLimits(connections=3, hello_s=0.5, stall_s=0.5)
OPEN = Open(request_id="r", prompt_ids=(1, 2, 3, 1, 2), sampling=SamplingSettings(), choice=0, k_max=8)


def commit(base_len: int, *tokens: int, generation: int = 1, k: int = 3) -> AcceptedPrefix:
    return AcceptedPrefix(request_id="r", base_len=base_len, token_ids=tokens, accepted=0, generation=generation, k=k)


class Client:
    """A verifier's end, in the test's own event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader()

    def send(self, *messages: ToDrafter) -> None:
        self.writer.write(encode_frames(messages))

    async def receive(self, count: int) -> list[ToVerifier]:
        messages: list[ToVerifier] = []
        async with asyncio.timeout(5):
            while len(messages) < count:
                data = await self.reader.read(65536)
                assert data, "the server closed the connection"
                messages.extend(read_for_verifier(body) for body in self._frames.bodies(data))
        assert len(messages) == count
        return messages

    async def is_closed(self) -> bool:
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        return True


class Bench:
    """A listening server and the clients of one test."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._sessions = Sessions(
            strategy=NgramStrategy(NgramSettings()), metrics=tally, limits=SessionLimits(sequence=1000)
        )
        self.server = DraftSocket(sessions=self._sessions, welcome=WELCOME, secret=SECRET, metrics=tally, limits=LIMITS)
        self._clients: list[Client] = []

    async def start(self) -> None:
        self._port = await self.server.start(host="127.0.0.1")

    async def connect(self) -> Client:
        # A small window, so that what a client leaves unread is soon the server's to hold.
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        client = Client(*await asyncio.open_connection(sock=connection))
        self._clients.append(client)
        return client

    async def admitted(self) -> Client:
        client = await self.connect()
        client.send(Hello(secret=SECRET, verifier="v"))
        assert await client.receive(1) == [WELCOME]
        return client

    async def still_serves(self) -> None:
        client = await self.admitted()
        client.send(OPEN, commit(5, 3))
        assert await client.receive(1) == [DraftBlock(request_id="r", base_len=6, generation=1, token_ids=(1, 2, 3))]
        client.writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        pytest.fail("it did not come about within five seconds")

    async def stop(self) -> None:
        for client in self._clients:
            client.writer.close()
        await self.server.stop()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(Tally(COUNTERS))
    await made.start()
    yield made
    await made.stop()


async def test_a_batch_is_answered_in_order(bench: Bench) -> None:
    client = await bench.admitted()
    client.send(
        OPEN,
        commit(5, 3, generation=1),
        commit(6, 9, generation=2),
        commit(7, 1, 2, generation=3, k=0),
        Ping(nonce=5),
        commit(20, 1, generation=4),
        Close(request_id="r", reason="done"),
        Close(request_id="never", reason="done"),
        commit(9, 1, generation=5),
    )
    assert await client.receive(5) == [
        DraftBlock(request_id="r", base_len=6, generation=1, token_ids=(1, 2, 3)),
        DraftBlock(request_id="r", base_len=7, generation=2, token_ids=()),
        Pong(nonce=5),
        Forgotten(request_id="r"),
        Forgotten(request_id="r"),
    ]
    await bench.until(lambda: bench.tally.values[BLOCKS] == 2)


async def test_frames_may_arrive_a_byte_at_a_time(bench: Bench) -> None:
    client = await bench.connect()
    for byte in encode_frames([Hello(secret=SECRET, verifier="v"), OPEN, commit(5, 3)]):
        client.writer.write(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.receive(2) == [
        WELCOME,
        DraftBlock(request_id="r", base_len=6, generation=1, token_ids=(1, 2, 3)),
    ]


NOT_ADMITTED = {
    "wrong secret": (encode_frames([Hello(secret="correct hors", verifier="v")]), "secret"),
    "empty secret": (encode_frames([Hello(secret="", verifier="v")]), "secret"),
    "secret in other letters": (encode_frames([Hello(secret="cörrect horse", verifier="v")]), "secret"),
    "no hello": (encode_frames([OPEN]), "malformed"),
    "ping first": (encode_frames([Ping(nonce=1)]), "malformed"),
    "garbage": (b"\x05\x00\x00\x00abcde", "malformed"),
    "an HTTP request": (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
    "a huge length": (b"\xff\xff\xff\xff", "malformed"),
    "a long hello": (encode_frames([Hello(secret="x" * 5000, verifier="v")]), "malformed"),
    "nothing": (b"", "timeout"),
    "half a length": (b"\x05\x00", "timeout"),
    "half a frame": (encode_frames([Hello(secret=SECRET, verifier="v")])[:-1], "timeout"),
}


@pytest.mark.parametrize("case", NOT_ADMITTED)
async def test_who_does_not_show_the_secret_is_closed_unheard(bench: Bench, case: str) -> None:
    data, reason = NOT_ADMITTED[case]
    client = await bench.connect()
    client.writer.write(data)
    # What was sent and never read may turn the end into a reset.
    with contextlib.suppress(ConnectionResetError):
        assert await client.reader.read(1) == b""
    assert bench.tally.values[f"{REFUSED}:{reason}"] == 1
    await bench.still_serves()


GARBAGE = {
    "noise": b"\x08\x00\x00\x00\x93\xa4openXX",
    "an empty frame": b"\x00\x00\x00\x00",
    "more than any frame": (MAX_FRAME + 1).to_bytes(4, "little"),
    "a second hello": encode_frames([Hello(secret=SECRET, verifier="v")]),
    "a drafter's message": encode_frames([Pong(nonce=1)]),
    "a commit of nothing": encode_frames([commit(5)]),
    "a negative token": encode_frames([commit(5, -1)]),
    "a token of 63 bits": encode_frames([commit(5, 2**62)]),
    "an array of four billion": b"\x12\x00\x00\x00\x98\xa8accepted\xa1r\x01\xdd\xff\xff\xff\xff",
    "deep nesting": (200_021).to_bytes(4, "little")
    + b"\x9a\xa8accepted\xa1r\x01\x91\x01\x00\x01\x03\xc0"
    + b"\x91" * 200_002,
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_a_malformed_frame_costs_its_connection_only(bench: Bench, case: str) -> None:
    good = await bench.admitted()
    bad = await bench.admitted()
    good.send(OPEN)
    bad.send(OPEN)
    bad.writer.write(GARBAGE[case])
    assert await bad.is_closed()
    assert bench.tally.values[MALFORMED] == 1
    good.send(commit(5, 3))
    assert await good.receive(1) == [DraftBlock(request_id="r", base_len=6, generation=1, token_ids=(1, 2, 3))]
    await bench.until(lambda: bench.tally.values[SESSIONS] == 1 and bench.tally.values[CONNECTIONS] == 1)


async def test_what_a_connection_opened_goes_with_it(bench: Bench) -> None:
    client = await bench.admitted()
    client.send(OPEN, Ping(nonce=1))
    await client.receive(1)
    await bench.until(lambda: bench.tally.values[SESSIONS] == 1)
    client.writer.transport.abort()
    await bench.until(lambda: bench.tally.values[SESSIONS] == bench.tally.values[CONNECTIONS] == 0)


async def test_a_peer_that_leaves_its_answers_unread_stops_being_read_and_is_closed(bench: Bench) -> None:
    slow = await bench.admitted()
    slow.send(OPEN, commit(5, 3))
    again = encode_frames([commit(5, 3)]) * 2000
    written = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            while written < 50_000_000:
                slow.writer.write(again)
                written += len(again)
                await slow.writer.drain()
    assert written < 50_000_000, "the server would take anything"
    await bench.still_serves()
    await bench.until(lambda: bench.tally.values[CONNECTIONS] == 0)


async def test_there_is_a_limit_on_connections(bench: Bench) -> None:
    clients = [await bench.admitted() for _ in range(LIMITS.connections)]
    assert await (await bench.connect()).is_closed()
    assert bench.tally.values[f"{REFUSED}:full"] == 1
    clients[0].writer.close()
    await bench.until(lambda: bench.tally.values[CONNECTIONS] == LIMITS.connections - 1)
    await bench.still_serves()


async def test_stopping_closes_every_connection(bench: Bench) -> None:
    client = await bench.admitted()
    waiting = await bench.connect()
    await bench.server.stop()
    assert await client.is_closed()
    assert await waiting.is_closed()
    assert not bench.server.is_serving
