"""What every route has in common: keys, and refusals in OpenAI's shape."""

import asyncio

import httpx
import pytest

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from tests.ingress.conftest import Serve, error_of


async def test_keys_close_the_api_and_leave_probes_open(serve: Serve) -> None:
    async with serve(
        settings=IngressSettings(
            api_key_digests=(
                key_digest("one"),
                key_digest("two"),
            )
        )
    ) as running:
        statuses = {path: (await running.http.get(path)).status_code for path in ("/health", "/metrics", "/v1/models")}
        none = await running.post_chat()
        wrong = await running.http.post(
            "/v1/chat/completions", json=running.chat, headers={"Authorization": "Bearer no"}
        )
        running.http.headers["Authorization"] = "Bearer two"
        right = await running.post_chat()
    assert statuses == {"/health": 200, "/metrics": 200, "/v1/models": 401}
    for refused in (none, wrong):
        assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
    assert right.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/health", 405),
    ],
)
async def test_other_paths_and_methods_are_refused_in_shape(serve: Serve, method: str, path: str, status: int) -> None:
    async with serve() as running:
        response = await running.http.request(method, path)
    assert response.status_code == status
    error_of(response)
    assert ("allow" in response.headers) == (status == 405)


async def test_a_slow_upload_spends_the_time_of_its_request(serve: Serve) -> None:
    async with serve(settings=IngressSettings(request_timeout_s=0.2)) as running:
        url = httpx.URL(running.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n{")
        async with asyncio.timeout(5):
            status = await reader.readline()
        writer.close()
        assert (await running.http.get("/v1/models")).status_code == 200
    assert status.startswith(b"HTTP/1.1 504 ")
