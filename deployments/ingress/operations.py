"""The routes of operators, under `/admin`. Knows the verifier's port and nothing of how replies are made."""

import asyncio

from starlette.routing import BaseRoute, Route

from deployments.ingress.endpoint import Door
from deployments.ingress.exchange import Exchange
from deployments.ingress.gates import gates_page
from deployments.ingress.reading import read_profile
from deployments.messages.errors import Unavailable
from deployments.messages.ports import VerifierPort

_ARCHIVE = "application/gzip"


class Operations:
    """What operators ask of a running service."""

    def __init__(self, *, verifier: VerifierPort, timeout_s: float) -> None:
        self._verifier = verifier
        self._timeout_s = timeout_s

    def routes(self, door: Door, /) -> list[BaseRoute]:
        """Theirs alone: every one asks for an admin key."""
        return [
            Route("/admin/gates", door.guarded(self._gates, route="gates"), methods=["GET"]),
            Route("/admin/profile", door.guarded(self._profile, route="profile"), methods=["POST"]),
        ]

    async def _gates(self, exchange: Exchange, _: bytes, /) -> None:
        """What the gates say about every replica of the verifier that answers."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reports = await self._verifier.gates()
        except TimeoutError:
            raise Unavailable("The verifier does not answer; try again in a moment.") from None
        await exchange.respond_json(gates_page(reports))

    async def _profile(self, exchange: Exchange, body: bytes, /) -> None:
        """A trace of one replica of the verifier at work, as an archive."""
        asked = read_profile(body)
        archive = await self._verifier.profile(asked.seconds)
        disposition = ("content-disposition", 'attachment; filename="outrider-trace.tar.gz"')
        await exchange.respond(archive, media_type=_ARCHIVE, headers=(disposition,))
