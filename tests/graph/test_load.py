"""Many clients, some of whom leave: everything they took is given back."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from serve_app.local import Service
from tests.graph.stage import LOAD_GAUGES, idle, metrics, until

pytestmark = pytest.mark.serve

REQUESTS = 200
CONCURRENCY = 32


@pytest.mark.slow
async def test_two_hundred_requests_with_random_cancels_leave_nothing(golden_service: Service) -> None:
    before = metrics(golden_service.url)
    dice = random.Random(5)
    plans = [_plan(dice, model=golden_service.model) for _ in range(REQUESTS)]
    gate = asyncio.Semaphore(CONCURRENCY)
    async with httpx.AsyncClient(base_url=golden_service.url, timeout=120.0) as client:

        async def one(body: dict[str, Any], leaves_after_s: float | None) -> str:
            async with gate:
                try:
                    async with asyncio.timeout(leaves_after_s):
                        return str(await _ask(client, body=body))
                except TimeoutError:
                    return "left"

        outcomes = Counter(await asyncio.gather(*(one(body, leaves) for body, leaves in plans)))
    assert outcomes.keys() <= {"200", "left"}, outcomes
    assert min(outcomes["200"], outcomes["left"]) > REQUESTS // 10, outcomes
    # A drafter that was left alone for being late hears which requests ended when it is asked again.
    gauges = (*LOAD_GAUGES, "drafter_sessions", "drafter_tokens_held")
    after = until(
        lambda: metrics(golden_service.url), holds=lambda page: not any(map(page.total, gauges)), within_s=20.0
    )
    assert after.total("windows_failed_total") == before.total("windows_failed_total")
    assert after.total("late_compilations_total") == 0
    left = after.total("requests_cancelled_total") - before.total("requests_cancelled_total")
    ended = after.total("requests_finished_total") - before.total("requests_finished_total")
    assert 0 < left <= outcomes["left"]
    assert ended >= outcomes["200"]
    statuses = {row["status"] for row, _ in after.samples["outrider_ingress_requests_total"]}
    assert not {status for status in statuses if status.startswith("5")}


def _plan(dice: random.Random, *, model: str) -> tuple[dict[str, Any], float | None]:
    """A request, and when its client loses patience."""
    body = {
        "model": model,
        "prompt": [dice.randrange(10, 500) for _ in range(dice.randrange(1, 150))],
        "max_tokens": dice.randrange(1, 200),
        "temperature": dice.choice([0.0, 0.9]),
        "seed": dice.randrange(1000),
        "stream": dice.random() < 0.5,
        "speculation": {"enabled": dice.random() < 0.7},
        "priority": dice.choice([0, 0, 0, -1, 1]),
    }
    if dice.random() < 0.3:
        body |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"7": -5}, "logprobs": 2}
    return body, dice.uniform(0.0, 1.0) if dice.random() < 0.4 else None


async def _ask(client: httpx.AsyncClient, *, body: dict[str, Any]) -> int:
    if not body["stream"]:
        return (await client.post("/v1/completions", json=body)).status_code
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
        if answer.status_code == 200:
            assert lines[-1] == "data: [DONE]"
            assert "error" not in json.loads(lines[-2].removeprefix("data: "))
        return answer.status_code


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_once(golden_service: Service, stream: bool) -> None:
    """A reply of 480 tokens would hold its slot for far longer than the reading of the gauges takes."""
    before = until(lambda: metrics(golden_service.url), holds=idle, within_s=10.0)
    body = {"model": golden_service.model, "prompt": [7, 8, 9], "max_tokens": 480, "temperature": 1.5, "seed": 3}
    async with httpx.AsyncClient(base_url=golden_service.url, timeout=60.0) as client:
        asking = asyncio.create_task(_ask(client, body=body | {"stream": stream}))
        await asyncio.to_thread(
            until, lambda: metrics(golden_service.url).total("active_slots"), holds=bool, within_s=10.0
        )
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    after = until(lambda: metrics(golden_service.url), holds=idle, within_s=5.0)
    assert after.total("requests_cancelled_total") - before.total("requests_cancelled_total") == 1
    assert after.total("generation_tokens_total") - before.total("generation_tokens_total") < 480
