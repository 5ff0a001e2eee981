"""How often a stream is sent something. Pure; knows chunks and a clock, neither threads nor loops.

A chunk costs the graph the same whether it holds one token or ten: an event in three processes. With many streams and
short windows that is more work than the model's, so chunks that follow each other closely travel as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deployments.messages.generation import TokenChunk
from deployments.verifier.delivery import Delivery

_PER_STREAM_S = 0.016
"""What one stream may hold back per open stream: all together they send some 60 chunks a second."""


@dataclass(slots=True, kw_only=True)
class _Stream:
    next_at: float
    held: TokenChunk | None = None


class Pacer:
    """Lets the first chunk of a stream and its end pass at once, and the others in between at most so often.

    Args:
        interval_s: how long a chunk may be held back; it leaves after the next window. 0 holds nothing back, and with
            few streams it is held less.
    """

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._streams: dict[str, _Stream] = {}

    def forget(self, request_id: str, /) -> None:
        """The request was cancelled: what is held for it is dropped."""
        self._streams.pop(request_id, None)

    def release(self, deliveries: Sequence[Delivery], /, *, now: float) -> list[Delivery]:
        """What should go out now, of these and of what was held; to be called after every window.

        A stream's tokens keep their order, and none is lost: an error comes after what was held.
        """
        released: list[Delivery] = []
        for delivery in deliveries:
            released.extend(self._take(delivery, now=now))
        if self._interval_s:
            # Also those this window brought nothing: a preempted reply must not keep the tokens it has.
            for request_id, stream in self._streams.items():
                if stream.held is not None and stream.next_at <= now:
                    released.append(Delivery(request_id=request_id, chunk=self._send(stream, now=now)))
        return released

    def _take(self, delivery: Delivery, *, now: float) -> list[Delivery]:
        request_id, chunk = delivery.request_id, delivery.chunk
        stream = self._streams.get(request_id)
        if chunk is None or chunk.finish_reason is not None:
            self._streams.pop(request_id, None)
            held = stream.held if stream is not None else None
            if held is None:
                return [delivery]
            if chunk is None:
                return [Delivery(request_id=request_id, chunk=held), delivery]
            return [Delivery(request_id=request_id, chunk=joined(held, then=chunk))]
        if stream is None:
            stream = self._streams[request_id] = _Stream(next_at=now)
        stream.held = chunk if stream.held is None else joined(stream.held, then=chunk)
        if stream.next_at > now:
            return []
        return [Delivery(request_id=request_id, chunk=self._send(stream, now=now))]

    def _send(self, stream: _Stream, *, now: float) -> TokenChunk:
        chunk, stream.held = stream.held, None
        assert chunk is not None
        stream.next_at = now + min(self._interval_s, _PER_STREAM_S * len(self._streams))
        return chunk


def together(deliveries: Sequence[Delivery], /) -> list[Delivery]:
    """One chunk for each request that has some, and after them the errors."""
    chunks: dict[str, TokenChunk] = {}
    for each in deliveries:
        if each.chunk is not None:
            before = chunks.get(each.request_id)
            chunks[each.request_id] = each.chunk if before is None else joined(before, then=each.chunk)
    told = [Delivery(request_id=request_id, chunk=chunk) for request_id, chunk in chunks.items()]
    return [*told, *(each for each in deliveries if each.chunk is None)]


def joined(first: TokenChunk, /, *, then: TokenChunk) -> TokenChunk:
    """One chunk that says what both say."""
    told = None if then.logprobs is None else (first.logprobs or ()) + then.logprobs
    return msgspec.structs.replace(then, token_ids=first.token_ids + then.token_ids, logprobs=told)
