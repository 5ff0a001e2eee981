"""A running ingress: the real application behind a real server on a free port, in front of fakes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
import uvicorn

from deployments.ingress.api import build_api
from deployments.ingress.counters import INGRESS_METRICS
from deployments.ingress.settings import IngressSettings
from tests.ingress.fakes import MODEL, FakeDrafter, FakeTokenizer, FakeVerifier, RegistryMetrics, Script, until

type Json = dict[str, Any]


@dataclass(kw_only=True)
class Running:
    """An ingress that serves, and the fakes behind it."""

    url: str
    http: httpx.AsyncClient
    verifier: FakeVerifier
    tokenizer: FakeTokenizer
    metrics: RegistryMetrics
    chat: Json = field(
        default_factory=lambda: {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}
    )

    async def post_chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={**self.chat, **fields})

    async def post_completion(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "Once", **fields})

    async def idle(self) -> None:
        """Waits until nothing is open or in flight any longer."""
        await until(lambda: not self.verifier.open and not self.metrics.value("ingress_in_flight"))


type Serve = Callable[..., AbstractAsyncContextManager[Running]]


def events_of(body: str, /) -> list[Json]:
    """The JSON of each event; the stream must be well formed and end with `[DONE]`."""
    assert body.endswith("data: [DONE]\n\n")
    frames = body.split("\n\n")[:-2]
    assert all(frame.startswith("data: ") for frame in frames)
    return [orjson.loads(frame.removeprefix("data: ")) for frame in frames]


def error_of(response: httpx.Response, /) -> Json:
    """The error object; it must have its four keys and a whole sentence."""
    assert response.headers["content-type"] == "application/json"
    error: Json = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return error


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def serving(
        *,
        script: Script | None = None,
        settings: IngressSettings | None = None,
        context: int = 4096,
        has_chat_template: bool = True,
        drafter: FakeDrafter | None = None,
    ) -> AsyncIterator[Running]:
        verifier = FakeVerifier(script=script, context=context)
        tokenizer = FakeTokenizer(has_chat_template=has_chat_template)
        metrics = RegistryMetrics(INGRESS_METRICS)
        api = build_api(
            tokenizer=tokenizer,
            verifier=verifier,
            drafter=drafter,
            settings=settings or IngressSettings(),
            metrics=metrics,
        )
        async with _listening(api) as url, _client(url) as http:
            yield Running(url=url, http=http, verifier=verifier, tokenizer=tokenizer, metrics=metrics)

    return serving


def _client(url: str, /) -> httpx.AsyncClient:
    # Reading certificates, which plain HTTP never needs, would be most of a test's time.
    return httpx.AsyncClient(base_url=url, timeout=10, verify=False)


@asynccontextmanager
async def _listening(api: Any, /) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(api, log_level="error", ws="none", timeout_graceful_shutdown=2)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        # Without `serve` and `shutdown`, whose pauses would cost each test a fifth of a second.
        await server.startup(sockets=[listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.lifespan.shutdown()
            for each in server.servers:
                each.close()
                async with asyncio.timeout(5):
                    # Connections have ended by now, or the ingress keeps one open that its client left.
                    await each.wait_closed()
