"""`GET /admin/gates`: who may see it, and what is there."""

import asyncio

import orjson
import pytest

from deployments.ingress.auth import key_digest
from deployments.ingress.gates import gates_page
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import Unavailable
from deployments.messages.gates import GainFigures, GateReport, LiveGain, SpeculationRule
from tests.ingress.conftest import Serve, error_of

SETTINGS = IngressSettings(
    api_key_digests=(key_digest("client"),), admin_key_digests=(key_digest("operator"),), gather_timeout_s=0.3
)
FORCED = SpeculationRule(
    kind="ngram", state="forced", gated=False, reason="forced_on", sentence="forced on by alice", k_by_active_slots=(7,)
)
FIGURES = GainFigures(gain=0.8, tokens_per_round=1.2, plain_window_ms=20.0, window_ms=26.0)
LIVE = LiveGain(
    windows=900,
    drafted_windows=500,
    seconds=60.0,
    plain_windows="seen",
    wait_ms=0.4,
    found=FIGURES,
    recorded=FIGURES,
    is_lost=True,
)
REPORTS = [
    GateReport(
        schema=1,
        replica=f"verifier#{name}",
        rule=FORCED,
        candidates=({"kind": "ngram", "exactness": None, "profit": None, "forced": {"by": "alice"}},),
        store={"state": "current", "parse_errors": 0},
        live=LIVE,
        gains_lost=1,
    )
    for name in ("b", "a")
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_every_replica_is_there_and_forced_is_not_measured(serve: Serve) -> None:
    async with serve(settings=SETTINGS) as running:
        running.verifier.reports = REPORTS
        answer = await running.http.get("/admin/gates", headers=bearer("operator"))
    assert answer.status_code == 200
    assert answer.content == orjson.dumps(gates_page(REPORTS))
    first, second = answer.json()["data"]
    assert [first["replica"], second["replica"]] == ["verifier#a", "verifier#b"]
    assert (first["schema"], first["state"], first["gated"], first["revision"]) == (1, "forced", False, 0)
    assert (first["kind"], first["k_by_active_slots"], first["stop_above"]) == ("ngram", [7], None)
    assert first["candidates"][0]["profit"] is None
    assert first["store"]["state"] == "current"
    # What was found live is apart from what was measured.
    assert (first["live"]["found"]["gain"], first["live"]["is_lost"], first["gains_lost"]) == (0.8, True, 1)
    assert "expected" not in first


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "invalid_api_key"),
        (bearer("nobody"), 401, "invalid_api_key"),
        (bearer("client"), 403, "forbidden"),
    ],
)
async def test_it_takes_an_admin_key(serve: Serve, headers: dict[str, str], status: int, code: str) -> None:
    async with serve(settings=SETTINGS) as running:
        answer = await running.http.get("/admin/gates", headers=headers)
        chat = await running.http.get("/v1/models", headers=bearer("operator"))
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    # Operators' keys are for what operators do.
    assert chat.status_code == 401


@pytest.mark.parametrize("settings", [IngressSettings(), IngressSettings(api_key_digests=(key_digest("client"),))])
async def test_without_admin_keys_it_is_closed(serve: Serve, settings: IngressSettings) -> None:
    async with serve(settings=settings) as running:
        for headers in ({}, bearer("client"), bearer("operator")):
            answer = await running.http.get("/admin/gates", headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")
            assert "admin_keys_file" in error_of(answer)["message"]


@pytest.mark.parametrize("trouble", ["away", "hangs"])
async def test_a_verifier_that_does_not_answer_is_named(serve: Serve, trouble: str) -> None:
    async with serve(settings=SETTINGS) as running:
        running.verifier.hangs = trouble == "hangs"
        running.verifier.away = Unavailable("The verifier is away; try again in a moment.")
        async with asyncio.timeout(3):
            answer = await running.http.get("/admin/gates", headers=bearer("operator"))
    assert (answer.status_code, error_of(answer)["code"]) == (503, "unavailable")
    assert "verifier" in error_of(answer)["message"]
