"""Drafters for tests of the verifier's links: a real one in its own process, and one in a thread that does as told."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from deployments.messages.drafting import (
    AcceptedPrefix,
    DraftBlock,
    DrafterEndpoint,
    Hello,
    Ping,
    Pong,
    ToDrafter,
    ToVerifier,
    Welcome,
)
from deployments.messages.frames import FrameReader, encode_frames, read_for_drafter

SCRIPT = Path(__file__).parents[1] / "drafter" / "drafter_process.py"

type Answer = Callable[[ToDrafter], list[ToVerifier] | bytes | None]


class DrafterProcess:
    """A drafter replica with n-gram lookup, started by `drafter_process`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self.process = process
        self.endpoint = msgspec.json.decode(process.stdout.readline(), type=DrafterEndpoint)


@contextmanager
def drafter_process() -> Iterator[DrafterProcess]:
    with subprocess.Popen([sys.executable, SCRIPT, '{"max_k": 8}'], stdout=subprocess.PIPE) as process:
        try:
            yield DrafterProcess(process)
        finally:
            process.kill()


def echo(message: ToDrafter) -> list[ToVerifier]:
    """The honest answer of a drafter that always guesses the last token again, once."""
    match message:
        case AcceptedPrefix(k=k) if k > 0:
            base_len = message.base_len + len(message.token_ids)
            guess = message.token_ids[-1:]
            return [
                DraftBlock(
                    request_id=message.request_id, base_len=base_len, generation=message.generation, token_ids=guess
                )
            ]
        case Ping(nonce=nonce):
            return [Pong(nonce=nonce)]
        case _:
            return []


class FakeDrafter:
    """Listens in a thread, welcomes everyone, then answers each message with what `answer` returns.

    `answer` may return bytes to send as they are, or `None` to close the connection; it may sleep. `heard` holds every
    message in order. `first_words` are sent in place of a proper welcome.
    """

    def __init__(
        self, *, answer: Answer = echo, name: str = "fake", max_k: int = 8, first_words: bytes | None = None
    ) -> None:
        self.answer = answer
        self.heard: list[ToDrafter] = []
        welcome = encode_frames([Welcome(drafter=name, kind="fake", max_k=max_k)])
        self._first_words = welcome if first_words is None else first_words
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.endpoint = DrafterEndpoint(replica=name, host="127.0.0.1", port=port, secret="s")
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def hang_up(self) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameReader()
        with suppress(OSError):
            while data := connection.recv(65536):
                for body in frames.bodies(data):
                    if not self._handle(read_for_drafter(body), connection=connection):
                        connection.shutdown(socket.SHUT_RDWR)
                        return

    def _handle(self, message: ToDrafter, *, connection: socket.socket) -> bool:
        if isinstance(message, Hello):
            connection.sendall(self._first_words)
            return True
        self.heard.append(message)
        reply = self.answer(message)
        if reply is None:
            return False
        connection.sendall(reply if isinstance(reply, bytes) else encode_frames(reply))
        return True


def halt(process: subprocess.Popen[bytes], /) -> None:
    """Returns once it is stopped: a process may do a good deal between the signal and its effect."""
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def fake_drafter(
    *, answer: Answer = echo, name: str = "fake", max_k: int = 8, first_words: bytes | None = None
) -> Iterator[FakeDrafter]:
    fake = FakeDrafter(answer=answer, name=name, max_k=max_k, first_words=first_words)
    try:
        yield fake
    finally:
        fake.stop()
