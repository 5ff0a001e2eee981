"""The verifier's end of one drafter connection: a socket, frames in and frames out.

Used by one plain thread at a time, never by an event loop. After `connect`, nothing here blocks or raises: whatever
goes wrong breaks the link, and a broken link sends nothing and reads nothing. Knows no requests and no deadlines but
those of `connect` and `ping`.
"""

import select
import socket
import time
from collections.abc import Iterable
from enum import StrEnum

from deployments.messages.drafting import DrafterEndpoint, Hello, Ping, Pong, ToDrafter, ToVerifier, Welcome
from deployments.messages.errors import ProtocolError, Unavailable
from deployments.messages.frames import FrameReader, encode_frames, read_for_verifier

_READ = 64 * 1024
# A block of 64 tokens with parents takes under a kilobyte; nothing longer can be honest.
_MOST_FRAME = 64 * 1024
_MOST_UNSENT = 1024 * 1024


class Breakage(StrEnum):
    """Why a link is broken."""

    GONE = "gone"
    MALFORMED = "malformed"
    CLOSED = "closed"


class DrafterLink:
    """An open connection to one drafter replica; made by `connect`.

    Attributes:
        welcome: how the drafter introduced itself.
        broken: why nothing works here any more; `None` while it does.
    """

    def __init__(
        self, *, connection: socket.socket, endpoint: DrafterEndpoint, welcome: Welcome, frames: FrameReader
    ) -> None:
        self.endpoint = endpoint
        self.welcome = welcome
        self.broken: Breakage | None = None
        self._connection = connection
        self._frames = frames
        self._unsent = bytearray()
        self._nonce = 0

    @classmethod
    def connect(cls, endpoint: DrafterEndpoint, /, *, verifier: str, timeout_s: float) -> "DrafterLink":
        """Connects, shows the secret, and waits for the welcome. Blocks for at most about `timeout_s`.

        Raises:
            Unavailable: no drafter answers there, or it does not want this verifier.
        """
        deadline = time.monotonic() + timeout_s
        try:
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
        except (OSError, ValueError, OverflowError) as error:
            raise Unavailable(f"no drafter at {endpoint.host}:{endpoint.port} ({error}); is it running?") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames = FrameReader(max_frame=_MOST_FRAME)
            welcome = _introduce(connection, endpoint=endpoint, verifier=verifier, frames=frames, deadline=deadline)
            connection.setblocking(False)
        except (OSError, ProtocolError) as error:
            connection.close()
            raise Unavailable(
                f"the drafter at {endpoint.host}:{endpoint.port} did not welcome this verifier ({error})"
            ) from error
        return cls(connection=connection, endpoint=endpoint, welcome=welcome, frames=frames)

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_choked(self) -> bool:
        """The peer has stopped reading: what waits to be sent is as much as is worth keeping."""
        return len(self._unsent) > _MOST_UNSENT

    def send(self, messages: Iterable[ToDrafter], /) -> None:
        """Sends all of `messages` in one write; what the peer does not take now goes out with a later `flush`.

        Nothing bounds what is kept but `is_choked`: look at it first.
        """
        if self.broken is None:
            self._unsent += encode_frames(messages)
            self.flush()

    def flush(self) -> None:
        """Sends as much of what is unsent as the peer takes now."""
        if self.broken or not self._unsent:
            return
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._break(Breakage.GONE)
            return
        del self._unsent[:sent]

    def read(self) -> list[ToVerifier]:
        """What has arrived, up to one buffer. Messages before a malformed frame are still returned."""
        messages: list[ToVerifier] = []
        if self.broken:
            return messages
        try:
            data = self._connection.recv(_READ)
        except BlockingIOError:
            return messages
        except OSError:
            data = b""
        if not data:
            self._break(Breakage.GONE)
            return messages
        try:
            for body in self._frames.bodies(data):
                messages.append(read_for_verifier(body))
        except ProtocolError:
            self._break(Breakage.MALFORMED)
        return messages

    def ping(self, *, timeout_s: float) -> bool:
        """Whether the drafter answers in time. Blocks for at most about `timeout_s`.

        Answers come in the order of the questions, so after a True nothing asked before is still to come.
        """
        self._nonce += 1
        deadline = time.monotonic() + timeout_s
        self.flush()
        if self.is_choked:
            return False
        self.send([Ping(nonce=self._nonce)])
        while self.broken is None and (left := deadline - time.monotonic()) > 0:
            wait_for([self], timeout_s=left)
            self.flush()
            if any(message == Pong(nonce=self._nonce) for message in self.read()):
                return True
        return False

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
        self._break(Breakage.CLOSED)

    def _break(self, reason: Breakage) -> None:
        if self.broken is None:
            self.broken = reason
            self._unsent.clear()
            self._connection.close()


def wait_for(links: Iterable[DrafterLink], /, *, timeout_s: float) -> list[DrafterLink]:
    """Waits until one of `links` can be read, or written if it has to; returns those that can."""
    # poll, not select: a busy server holds more file descriptors than select takes.
    poller = select.poll()
    by_descriptor = {link.fileno(): link for link in links if link.broken is None}
    for descriptor, link in by_descriptor.items():
        poller.register(descriptor, select.POLLIN | (select.POLLOUT if link.has_unsent else 0))
    return [by_descriptor[descriptor] for descriptor, _ in poller.poll(timeout_s * 1000)]


def _introduce(
    connection: socket.socket, *, endpoint: DrafterEndpoint, verifier: str, frames: FrameReader, deadline: float
) -> Welcome:
    connection.sendall(encode_frames([Hello(secret=endpoint.secret, verifier=verifier)]))
    while True:
        # A peer that sends its answer drop by drop must not extend the deadline with each drop.
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no welcome in time")
        connection.settimeout(left)
        data = connection.recv(_READ)
        if not data:
            raise ProtocolError("it closed the connection; the secret may be from before its restart")
        for body in frames.bodies(data):
            message = read_for_verifier(body)
            if isinstance(message, Welcome) and message.max_k >= 1:
                return message
            raise ProtocolError("its first frame is not a proper welcome")
