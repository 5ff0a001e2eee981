"""What every route has in common: the key, the body's limit, the deadline, errors, and the count of answers.

Knows no route and no model.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from deployments.ingress.auth import AdminKeys, ApiKeys
from deployments.ingress.counters import Counters
from deployments.ingress.errors import shape_of
from deployments.ingress.exchange import ClientGone, Exchange
from deployments.ingress.settings import IngressSettings

type Handler = Callable[[Exchange, bytes], Awaitable[None]]

_LEFT_FIRST = 499
_log = logging.getLogger(__name__)


class Door:
    """Turns handlers into ASGI endpoints."""

    def __init__(self, *, settings: IngressSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._keys = ApiKeys(digests=settings.api_key_digests)
        self._open = ApiKeys(digests=())
        self._admin = AdminKeys(digests=settings.admin_key_digests, others=settings.api_key_digests)

    def closed(self, handler: Handler, /, *, route: str) -> "Endpoint":
        """An endpoint that asks for a key, if there are keys."""
        return self._endpoint(handler, route=route, keys=self._keys)

    def open(self, handler: Handler, /, *, route: str) -> "Endpoint":
        """An endpoint for probes and scrapers, which carry no key."""
        return self._endpoint(handler, route=route, keys=self._open)

    def guarded(self, handler: Handler, /, *, route: str) -> "Endpoint":
        """An endpoint for operators, who have a key of their own."""
        return self._endpoint(handler, route=route, keys=self._admin)

    def _endpoint(self, handler: Handler, /, *, route: str, keys: ApiKeys) -> "Endpoint":
        return Endpoint(
            handler=handler,
            route=route,
            keys=keys,
            counters=self._counters,
            max_body_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.request_timeout_s,
        )


class Endpoint:
    """An ASGI application for one route."""

    def __init__(
        self,
        *,
        handler: Handler,
        route: str,
        keys: ApiKeys,
        counters: Counters,
        max_body_bytes: int,
        timeout_s: float | None,
    ) -> None:
        self._handler = handler
        self._route = route
        self._keys = keys
        self._counters = counters
        self._max_body_bytes = max_body_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope=scope, receive=receive, send=send)
        try:
            await self._serve(exchange)
        except ClientGone:
            self._counters.disconnected()
        except asyncio.CancelledError:
            # Ray Serve cancels the call when its client leaves.
            self._counters.disconnected()
            raise
        finally:
            self._counters.answered(route=self._route, status=exchange.status or _LEFT_FIRST)

    async def _serve(self, exchange: Exchange, /) -> None:
        try:
            self._keys.check(exchange.header("authorization"))
            deadline = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
            # A client that takes its time to send spends its own.
            async with asyncio.timeout_at(deadline):
                body = await exchange.body(limit=self._max_body_bytes)
            await exchange.until_left(self._handle(exchange, body, deadline=deadline))
        except ClientGone:
            raise
        except Exception as error:
            shape = shape_of(error)
            if shape.code == "internal_error":
                _log.exception("%s failed", self._route)
            if await exchange.fail(shape):
                self._counters.stream_failed()

    async def _handle(self, exchange: Exchange, body: bytes, /, *, deadline: float | None) -> None:
        async with asyncio.timeout_at(deadline):
            await self._handler(exchange, body)
