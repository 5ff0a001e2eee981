"""The socket of a drafter replica: verifiers connect, show the secret, and are answered batch by batch.

Knows frames and connections; what a commit means is the sessions' business. Nothing a peer sends costs more than its
own connection: each one is read only as fast as it takes its answers, and all that is kept of it is bounded.

A plain thread per connection, not an event loop: after a window's pause a loop takes twice as long to read, answer and
write as a thread that was waiting in `recv`, and the verifier waits for all of it.
"""

import asyncio
import errno
import hmac
import itertools
import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from deployments.drafter.counters import BATCH_SECONDS, BLOCKS, CONNECTIONS, MALFORMED, REFUSED, TOKENS_PROPOSED
from deployments.drafter.sessions import Sessions
from deployments.messages.drafting import (
    AcceptedPrefix,
    Close,
    DraftBlock,
    Hello,
    Open,
    Ping,
    Pong,
    ToVerifier,
    Welcome,
)
from deployments.messages.errors import ProtocolError
from deployments.messages.frames import FrameReader, encode_frames, read_for_drafter
from deployments.messages.metrics import Metrics

# Small, because a batch is answered in one go and other verifiers wait meanwhile.
_READ = 16 * 1024
_MOST_HELLO = 4096
_KERNEL_BUFFER = 128 * 1024
_BACKLOG = 64
# A process that has run out of these should not spin until it has some again.
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ACCEPT_PAUSE_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one peer may cost.

    Attributes:
        connections: open at once; the next one is closed at once.
        hello_s: the time a new connection has to show the secret.
        stall_s: the time a peer may leave its answers unread.
    """

    connections: int = 64
    hello_s: float = 5.0
    stall_s: float = 30.0


class DraftSocket:
    """Listens, and answers verifiers from `sessions`."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        welcome: Welcome,
        secret: str,
        metrics: Metrics,
        limits: ServerLimits,
    ) -> None:
        self._sessions = sessions
        self._welcome = welcome
        self._secret = secret.encode()
        self._metrics = metrics
        self._limits = limits
        self._numbers = itertools.count(1)
        # Held while a batch is answered: sessions and strategy know one caller.
        self._answering = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_serving(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    async def start(self, *, host: str, port: int = 0) -> int:
        """Listens on `host`; returns the port, chosen by the system when `port` is 0."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        bound: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, args=(self._listener,), name="drafting", daemon=True)
        self._thread.start()
        return bound

    async def stop(self) -> None:
        """Closes the listening socket and every connection."""
        if self._listener is None or self._thread is None:
            return
        _hang_up(self._listener)
        await asyncio.to_thread(self._thread.join)
        self._listener.close()
        for thread, connection in list(self._open.items()):
            _hang_up(connection)
            await asyncio.to_thread(thread.join)

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    return  # the listener was shut down
                _log.warning("a new drafting connection could not be taken: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._open) >= self._limits.connections:
                self._refuse("full")
                connection.close()
                continue
            number = next(self._numbers)
            thread = threading.Thread(
                target=self._attend, args=(connection, number), name=f"drafting-{number}", daemon=True
            )
            self._open[thread] = connection
            thread.start()

    def _attend(self, connection: socket.socket, number: int) -> None:
        try:
            if self._admit(connection):
                self._serve(connection, number=number)
        except OSError:
            pass  # the peer went away; so does everything it opened
        finally:
            with self._answering:
                self._sessions.close_connection(number)
                self._sessions.publish()
            del self._open[threading.current_thread()]
            connection.close()

    def _admit(self, connection: socket.socket) -> bool:
        """Whether the first frame is a `Hello` with the secret, in time."""
        deadline = time.monotonic() + self._limits.hello_s
        try:
            length = int.from_bytes(_receive(connection, size=4, deadline=deadline), "little")
            if length > _MOST_HELLO:
                raise ProtocolError(f"a first frame of {length} bytes")
            hello = read_for_drafter(_receive(connection, size=length, deadline=deadline))
        except TimeoutError:
            return self._refuse("timeout")
        except ProtocolError:
            return self._refuse("malformed")
        if not isinstance(hello, Hello):
            return self._refuse("malformed")
        if not hmac.compare_digest(hello.secret.encode(), self._secret):
            return self._refuse("secret")
        return True

    def _refuse(self, reason: str) -> bool:
        self._metrics.add(REFUSED, labels=(reason,))
        _log.warning("closed a new drafting connection: %s", reason)
        return False

    def _serve(self, connection: socket.socket, *, number: int) -> None:
        _tune(connection)
        self._metrics.add(CONNECTIONS)
        try:
            self._send(connection, data=encode_frames([self._welcome]))
            self._converse(connection, number=number)
        except ProtocolError as error:
            self._metrics.add(MALFORMED)
            _log.warning("closed drafting connection %d: %s", number, error)
        except TimeoutError:
            _log.warning("closed drafting connection %d: its answers were left unread", number)
        finally:
            self._metrics.add(CONNECTIONS, amount=-1)

    def _converse(self, connection: socket.socket, *, number: int) -> None:
        frames = FrameReader()
        while data := connection.recv(_READ):
            started = time.perf_counter()
            with self._answering:
                answers = [
                    answer
                    for body in frames.bodies(data)
                    if (answer := self._answer(body, connection=number)) is not None
                ]
            seconds = time.perf_counter() - started
            if answers:
                self._send(connection, data=encode_frames(answers))
            # After the answers are out: the verifier waits for them, nobody waits for the counts.
            self._count(answers, seconds=seconds)

    def _send(self, connection: socket.socket, *, data: bytes) -> None:
        """Sends all of `data`. Raises `TimeoutError` when the peer does not take it in time."""
        try:
            sent = connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return
        connection.settimeout(self._limits.stall_s)
        connection.sendall(memoryview(data)[sent:])
        connection.settimeout(None)

    def _count(self, answers: Sequence[ToVerifier], *, seconds: float) -> None:
        blocks = [answer for answer in answers if isinstance(answer, DraftBlock)]
        if blocks:
            self._metrics.add(BLOCKS, amount=len(blocks))
            self._metrics.add(TOKENS_PROPOSED, amount=sum(len(block.token_ids) for block in blocks))
            self._metrics.observe(BATCH_SECONDS, value=seconds)
        self._sessions.publish()

    def _answer(self, body: bytes, *, connection: int) -> ToVerifier | None:
        match read_for_drafter(body):
            case AcceptedPrefix() as message:
                return self._sessions.commit(message, connection=connection)
            case Open() as message:
                self._sessions.open(message, connection=connection)
            case Close() as message:
                self._sessions.close(message, connection=connection)
            case Ping(nonce=nonce):
                return Pong(nonce=nonce)
            case Hello():
                raise ProtocolError("a second Hello")
        return None


def _receive(connection: socket.socket, *, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ProtocolError("it closed the connection")
        data += part
    return data


def _hang_up(connection: socket.socket) -> None:
    # shutdown, not close: only this wakes the thread that waits in it
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _tune(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Answers are small; what a peer leaves unread should not sit in the kernel by the megabyte either.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
    # A verifier whose host vanished never closes its connection; keep-alive ends it, and frees its sessions.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
