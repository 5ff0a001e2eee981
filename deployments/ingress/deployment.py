"""The ingress as a Ray Serve deployment: wiring only. `build` turns the class into one with `serve.ingress()`."""

from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from deployments.ingress.api import build_api
from deployments.ingress.clients import DrafterClient, TokenizerClient, VerifierClient, gathered
from deployments.ingress.counters import INGRESS_METRICS
from deployments.ingress.settings import IngressSettings
from deployments.messages.metrics import MetricsFactory


class IngressServer:
    """One ingress replica. Serve asks it for its ASGI application once, after construction."""

    def __init__(
        self,
        *,
        tokenizer: DeploymentHandle[Any],
        verifier: DeploymentHandle[Any],
        drafter: DeploymentHandle[Any] | None,
        settings: IngressSettings,
        metrics: MetricsFactory,
    ) -> None:
        self._metrics = metrics(INGRESS_METRICS)
        self._api = build_api(
            tokenizer=TokenizerClient(tokenizer),
            verifier=VerifierClient(verifier),
            drafter=None if drafter is None else DrafterClient(drafter),
            settings=settings,
            metrics=self._metrics,
            siblings=_siblings(),
        )

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._api

    async def metrics(self) -> str:
        """This replica's page; another ingress replica asks for it when it is the one that is scraped."""
        return self._metrics.exposition()

    async def check_health(self) -> None:
        """Answers while the event loop does. A verifier that is away is not cured by restarting the ingress."""


def _siblings() -> Callable[[], Awaitable[list[str]]]:
    """Reaches every ingress replica's metrics, this one's included."""
    context = serve.get_replica_context()
    handle = serve.get_deployment_handle(context.deployment, app_name=context.app_name)

    async def pages() -> list[str]:
        return await gathered(handle, method="metrics", part="ingress")

    return pages
