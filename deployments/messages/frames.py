"""Frames of the drafting protocol: four bytes of little-endian length, then one msgpack message.

Knows bytes and messages, not sockets: both ends feed it what they read and write what it returns.
"""

from collections.abc import Iterable, Iterator

import msgspec

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
from deployments.messages.errors import ProtocolError

MAX_FRAME = 16 * 1024 * 1024
_LENGTH = 4

_encoder = msgspec.msgpack.Encoder()
_to_drafter: msgspec.msgpack.Decoder[ToDrafter] = msgspec.msgpack.Decoder(Hello | Open | AcceptedPrefix | Close | Ping)
_to_verifier: msgspec.msgpack.Decoder[ToVerifier] = msgspec.msgpack.Decoder(Welcome | DraftBlock | Forgotten | Pong)


def encode_frames(messages: Iterable[ToDrafter | ToVerifier], /) -> bytes:
    """All of `messages`, ready for one write."""
    parts: list[bytes] = []
    for message in messages:
        body = _encoder.encode(message)
        parts.append(len(body).to_bytes(_LENGTH, "little"))
        parts.append(body)
    return b"".join(parts)


class FrameReader:
    """Cuts a byte stream into message bodies. Feed it whatever arrived; it keeps what is incomplete."""

    def __init__(self, *, max_frame: int = MAX_FRAME) -> None:
        self._pending = bytearray()
        self._wanted = _LENGTH
        self._max_frame = max_frame

    def bodies(self, data: bytes, /) -> Iterator[bytes]:
        """Yields each frame's body that `data` completes.

        Raises:
            ProtocolError: a frame says it is longer than `max_frame`.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                return
            data = bytes(self._pending)
            self._pending.clear()
        start, end = 0, len(data)
        try:
            while end - start >= _LENGTH:
                length = int.from_bytes(data[start : start + _LENGTH], "little")
                if length > self._max_frame:
                    raise ProtocolError(f"a frame of {length} bytes exceeds the limit of {self._max_frame}")
                if end - start < _LENGTH + length:
                    break
                start += _LENGTH + length
                yield data[start - length : start]
        finally:
            # Also when the caller stops half-way: what it has not taken is still to come.
            self._keep(data[start:])

    def _keep(self, rest: bytes) -> None:
        self._pending += rest
        self._wanted = _LENGTH + (int.from_bytes(rest[:_LENGTH], "little") if len(rest) >= _LENGTH else 0)


def read_for_drafter(body: bytes, /) -> ToDrafter:
    """Raises `ProtocolError` for anything but a message a verifier may send."""
    try:
        return _to_drafter.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a frame a verifier sends: {error}") from error


def read_for_verifier(body: bytes, /) -> ToVerifier:
    """Raises `ProtocolError` for anything but a message a drafter may send."""
    try:
        return _to_verifier.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a frame a drafter sends: {error}") from error
