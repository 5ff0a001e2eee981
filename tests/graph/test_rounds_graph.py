"""Drafts from the verifier's own device through the running graph: no drafter is deployed, replies are plain ones."""

import asyncio
from pathlib import Path

import httpx
import pytest

from deployments.messages.generation import GenerateRequest, SamplingSettings
from serve_app.local import Service
from serve_app.proving.asking import replies_to
from serve_app.proving.comparison import compare
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question
from tests.graph.stage import Stage, app_config, idle, metrics, replica_pids, until, verifier_client

# The first start of a fresh machine compiles.
pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]

STREAMS, TOKENS = 3, 150


@pytest.fixture(scope="module")
def chip_service(the_stage: Stage, golden_llama_rope3: Path) -> Service:
    drafter = {"kind": "ngram", "placement": "chip", "min_n": 1, "max_n": 2}
    model = golden_llama_rope3 / "llama_rope3.f32.gguf"
    return the_stage.service(app_config(model, drafter=drafter, context=512, slots=4, ladder=(8, 16), rounds=3))


def test_replies_are_the_plain_ones(chip_service: Service) -> None:
    asked = tuple(
        Question(
            mode=mode,
            request=GenerateRequest(
                request_id=f"{mode} {index}",
                prompt_ids=tuple(range(20 + 7 * index, 40 + 7 * index)) * 2,
                max_tokens=TOKENS,
                sampling=SamplingSettings(temperature=0.0 if mode is Mode.GREEDY else 0.3, seed=index),
            ),
        )
        for index, mode in enumerate([*Mode] * 3)
    )
    plain = asyncio.run(replies_to(asked, verifier=verifier_client(), streams=STREAMS, speculation=PLAIN))
    assert metrics(chip_service.url).total("round_windows_total") == 0
    found = asyncio.run(replies_to(asked, verifier=verifier_client(), streams=STREAMS, speculation=SPECULATING))

    seen = compare(found, plain=plain)
    assert (seen.tokens, seen.mismatches) == (TOKENS * len(asked), 0)
    page = until(lambda: metrics(chip_service.url), holds=idle, within_s=10)
    assert page.total("round_windows_total") > 100
    assert page.total("round_windows_total") <= 3 * page.total("round_calls_total")
    assert page.total("spec_decode_num_accepted_tokens_total") > 20
    assert sum(reply.statistics.draft_n_accepted for reply in found.values()) > 20
    assert {reply.statistics.draft_kind for reply in found.values() if reply.statistics.draft_n} == {"ngram"}


def test_nobody_else_drafts(chip_service: Service) -> None:
    assert not replica_pids("drafter")
    assert replica_pids("verifier")
    assert httpx.get(f"{chip_service.url}/health").status_code == 200
