"""The socket of a drafter replica: verifiers connect, show the secret, and are answered batch by batch.

Knows frames and connections; what a commit means is the sessions' business. Nothing a peer sends costs more than its
own connection: each one is read only as fast as it takes its answers, and all that is kept of it is bounded.
"""

import asyncio
import hmac
import itertools
import logging
import socket
import time
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
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    @property
    def is_serving(self) -> bool:
        return self._server is not None and self._server.is_serving()

    async def start(self, *, host: str, port: int = 0) -> int:
        """Listens on `host`; returns the port, chosen by the system when `port` is 0."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_READ)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Closes the listening socket and every connection."""
        if self._server is None:
            return
        self._server.close()
        # abort, not cancel: asyncio reports a cancelled connection task as an error of ours
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self._limits.connections:
            self._refuse("full")
            writer.close()
            return
        self._open[task] = writer
        connection = next(self._numbers)
        try:
            if await self._admit(reader):
                await self._serve(reader, writer, connection=connection)
        except OSError:
            pass  # the peer went away; so does everything it opened
        finally:
            del self._open[task]
            self._sessions.close_connection(connection)
            self._sessions.publish()
            # abort, not close: a peer that stopped reading would keep its unsent answers in memory
            writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader) -> bool:
        """Whether the first frame is a `Hello` with the secret, in time."""
        try:
            async with asyncio.timeout(self._limits.hello_s):
                length = int.from_bytes(await reader.readexactly(4), "little")
                if length > _MOST_HELLO:
                    raise ProtocolError(f"a first frame of {length} bytes")
                hello = read_for_drafter(await reader.readexactly(length))
        except TimeoutError:
            return self._refuse("timeout")
        except (ProtocolError, asyncio.IncompleteReadError):
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, connection: int) -> None:
        _tune(writer)
        self._metrics.add(CONNECTIONS)
        try:
            writer.write(encode_frames([self._welcome]))
            await self._converse(reader, writer, connection=connection)
        except ProtocolError as error:
            self._metrics.add(MALFORMED)
            _log.warning("closed drafting connection %d: %s", connection, error)
        except TimeoutError:
            _log.warning("closed drafting connection %d: its answers were left unread", connection)
        finally:
            self._metrics.add(CONNECTIONS, amount=-1)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, connection: int) -> None:
        frames = FrameReader()
        while data := await reader.read(_READ):
            started = time.perf_counter()
            answers = [
                answer
                for body in frames.bodies(data)
                if (answer := self._answer(body, connection=connection)) is not None
            ]
            writer.write(encode_frames(answers))
            self._count(answers, seconds=time.perf_counter() - started)
            if writer.transport.get_write_buffer_size():
                async with asyncio.timeout(self._limits.stall_s):
                    await writer.drain()
            if len(data) == _READ:
                await asyncio.sleep(0)  # more is waiting, and reading it would not let the others have their turn

    def _count(self, answers: list[ToVerifier], *, seconds: float) -> None:
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


def _tune(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Answers are small; what a peer leaves unread should not sit in the kernel by the megabyte either.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
    # A verifier whose host vanished never closes its connection; keep-alive ends it, and frees its sessions.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
