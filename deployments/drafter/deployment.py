"""The drafter deployment: wiring only. A plain class; `serve_app` turns it into a deployment.

Drafts travel over the socket; a Serve handle only tells where it is, and carries metrics and health.
"""

import asyncio
import secrets

from deployments.drafter.counters import COUNTERS
from deployments.drafter.server import DraftSocket, ServerLimits
from deployments.drafter.sessions import SessionLimits, Sessions
from deployments.lm.drafting.build import StrategySettings, build_strategy
from deployments.messages.drafting import DrafterEndpoint, Welcome
from deployments.messages.metrics import MetricsFactory

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class DrafterServer:
    """One drafter replica.

    Args:
        strategy: which drafter, and how.
        listen_host: the address to listen on, which verifiers must reach; `None` takes the node's own address.

    Raises:
        ConfigError: the strategy cannot be built.
    """

    def __init__(
        self,
        *,
        strategy: StrategySettings,
        metrics: MetricsFactory,
        listen_host: str | None = None,
        session_limits: SessionLimits | None = None,
        server_limits: ServerLimits | None = None,
    ) -> None:
        self._listen_host = listen_host
        self._metrics = metrics(COUNTERS)
        self._secret = secrets.token_hex(32)
        self._replica = f"drafter-{secrets.token_hex(4)}"
        self._endpoint: DrafterEndpoint | None = None
        self._starting = asyncio.Lock()
        built = build_strategy(strategy)
        sessions = Sessions(strategy=built, metrics=self._metrics, limits=session_limits or SessionLimits())
        welcome = Welcome(drafter=self._replica, kind=built.traits.kind, max_k=built.traits.max_k)
        self._server = DraftSocket(
            sessions=sessions,
            welcome=welcome,
            secret=self._secret,
            metrics=self._metrics,
            limits=server_limits or ServerLimits(),
        )

    async def endpoint(self) -> DrafterEndpoint:
        """Where this replica listens, and the secret that opens it. Listens from the first call on."""
        async with self._starting:
            if self._endpoint is None:
                host = self._listen_host or _node_address()
                port = await self._server.start(host=host)
                advertised = _node_address() if host in _WILDCARDS else host
                self._endpoint = DrafterEndpoint(replica=self._replica, host=advertised, port=port, secret=self._secret)
            return self._endpoint

    async def metrics(self) -> str:
        return self._metrics.exposition()

    async def check_health(self) -> None:
        """Raises when the socket no longer listens; Serve then replaces the replica."""
        if self._endpoint is not None and not self._server.is_serving:
            raise RuntimeError("the drafting socket is closed")

    async def stop(self) -> None:
        """Closes the socket and every connection. Serve ends replicas without it."""
        await self._server.stop()


def _node_address() -> str:
    # Imported here so that the class runs, and is tested, without Ray.
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())
