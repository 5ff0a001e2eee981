"""`POST /admin/profile`: who may ask for a trace, for how long, and what a trace comes as."""

import pytest

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import Unavailable
from tests.ingress.conftest import Serve, error_of

SETTINGS = IngressSettings(api_key_digests=(key_digest("client"),), admin_key_digests=(key_digest("operator"),))
OPERATOR = {"Authorization": "Bearer operator"}


@pytest.mark.parametrize(("body", "seconds"), [(b"", 2.0), (b'{"seconds": 0.5}', 0.5), (b'{"seconds": 60}', 60.0)])
async def test_a_trace_comes_as_an_archive(serve: Serve, body: bytes, seconds: float) -> None:
    async with serve(settings=SETTINGS) as running:
        answer = await running.http.post("/admin/profile", headers=OPERATOR, content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/gzip")
    assert "outrider-trace.tar.gz" in answer.headers["content-disposition"]
    assert answer.content == f"{seconds} s".encode()


@pytest.mark.parametrize("body", [b'{"seconds": 0}', b'{"seconds": 61}', b'{"seconds": "2"}', b'{"for": 2}', b"[2]"])
async def test_what_is_not_a_wish_for_one_is_refused(serve: Serve, body: bytes) -> None:
    async with serve(settings=SETTINGS) as running:
        answer = await running.http.post("/admin/profile", headers=OPERATOR, content=body)
    assert answer.status_code == 400


async def test_it_takes_an_admin_key(serve: Serve) -> None:
    async with serve(settings=SETTINGS) as running:
        answer = await running.http.post("/admin/profile", headers={"Authorization": "Bearer client"})
    assert answer.status_code == 403


async def test_one_that_is_being_taken_is_not_disturbed(serve: Serve) -> None:
    async with serve(settings=SETTINGS) as running:
        running.verifier.away = Unavailable("A trace is being taken; ask again when it has ended.")
        answer = await running.http.post("/admin/profile", headers=OPERATOR)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "unavailable")
    assert "being taken" in error_of(answer)["message"]
