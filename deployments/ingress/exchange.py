"""One HTTP request and its answer over ASGI: a bounded body, JSON or an event stream, and a client that leaves.

Knows neither routes nor models. Starlette's `StreamingResponse` is not used because an answer here decides late
whether it is a stream, and because a client that leaves must end the work in every case, streamed or not.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from deployments.ingress.errors import BodyTooLarge, ErrorShape
from deployments.messages.errors import Unavailable

_EVENT_STREAM = "text/event-stream; charset=utf-8"
_DRAIN = 8
"""A body of up to this many times the limit is read to its end, or the client would see a reset and not the answer."""

_HEARSAY_S = 0.25
"""Serve cancels what was called for a client that left; that another part is away may be heard before the reason."""


class ClientGone(Exception):
    """The client left before its request was complete."""


class Exchange:
    """A request, and what has been answered so far.

    Attributes:
        status: of the answer, 0 until it has begun.
    """

    def __init__(self, *, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.status = 0
        self._headers = Headers(scope=scope)
        self._receive = receive
        self._send = send
        self._streaming = False
        self._finished = False

    def header(self, name: str, /) -> str | None:
        return self._headers.get(name)

    def path_parameter(self, name: str, /) -> str:
        return str(self.scope["path_params"][name])

    async def body(self, *, limit: int) -> bytes:
        """The whole body.

        Raises:
            BodyTooLarge: it is longer than `limit`.
            ClientGone: the client left while sending it.
        """
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= _DRAIN * limit:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= limit:
                parts.append(part)
        if size > limit:
            raise BodyTooLarge(f"The body is longer than {limit} bytes, the most this server reads; send less text.")
        return b"".join(parts)

    async def respond_json(self, value: Any, /) -> None:
        await self.respond(orjson.dumps(value))

    async def respond(
        self,
        body: bytes,
        /,
        *,
        status: int = 200,
        media_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """The whole answer at once."""
        await self._begin(
            status=status, headers=(("content-type", media_type), ("content-length", str(len(body))), *headers)
        )
        await self._last(body)

    async def begin_events(self) -> None:
        """Starts a stream of server-sent events; proxies are asked not to collect them."""
        self._streaming = True
        headers = (("content-type", _EVENT_STREAM), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))
        await self._begin(status=200, headers=headers)

    async def event(self, data: bytes, /) -> None:
        await self._transmit({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

    async def end_events(self) -> None:
        """Closes the stream of events."""
        self._streaming = False
        await self._last(b"")

    async def fail(self, error: ErrorShape, /) -> bool:
        """Tells the client, as a status if the answer has not begun and as a last event if it is a stream.

        Returns:
            Whether it became an event of a stream that had begun.
        """
        if self._streaming:
            await self.event(error.body)
            await self.end_events()
            return True
        if not self.status:
            await self.respond(error.body, status=error.status, headers=error.headers)
        return False

    async def until_left(self, work: Coroutine[Any, Any, None], /) -> None:
        """Runs `work` and cancels it as soon as the client leaves.

        Raises:
            ClientGone: it left first; `work` has been cancelled and has cleaned up.
        """
        task = asyncio.create_task(work)
        watch = asyncio.create_task(self._left())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and isinstance(task.exception(), Unavailable):
                await asyncio.wait((watch,), timeout=_HEARSAY_S)
            if watch.done() and not self._finished:
                raise ClientGone
            await task
        finally:
            task.cancel()
            watch.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _begin(self, *, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._transmit({"type": "http.response.start", "status": status, "headers": raw})

    async def _last(self, body: bytes, /) -> None:
        # Set first: once all is sent, servers report the client as gone, and that is not a client that left early.
        self._finished = True
        await self._transmit({"type": "http.response.body", "body": body, "more_body": False})

    async def _transmit(self, message: Message, /) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error
