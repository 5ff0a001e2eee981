"""Families other than llama through the running graph: from a folder or a file to the peers' own texts, with drafts."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from deployments.messages.generation import GenerateRequest, SamplingSettings
from serve_app.local import Service
from serve_app.proving.asking import replies_to
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question
from tests.graph.stage import Stage, app_config, metrics, verifier_client

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]

TOKENS = 48
# A recurrence from a Hugging Face folder, a sliding window and experts from files.
CUTS = (3, 9, 10, 16, 22, 31, 37, 44)
MODELS = ("qwen3_5", "gemma3/gemma3.f16.gguf", "qwen3_moe/qwen3_moe.f16.gguf")


@pytest.fixture(params=[MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])])
def family(
    request: pytest.FixtureRequest, the_stage: Stage, goldens: Path, oracle_file: Path
) -> tuple[Service, dict[str, np.ndarray]]:
    path = goldens / request.param
    with np.load((path if path.is_dir() else path.parent) / "ref.npz") as stored:
        reference = dict(stored)
    oracle_file.write_text(json.dumps([half_true(reference, number=n, cut=cut) for n in range(3) for cut in CUTS]))
    drafter = {"kind": "oracle", "path": str(oracle_file)}
    service = the_stage.service(
        app_config(path, drafter=drafter, precision="f32", context=256, page_size=16, draft_deadline_ms=50)
    )
    return service, reference


def half_true(reference: dict[str, np.ndarray], *, number: int, cut: int) -> list[int]:
    """What an oracle says that errs from `cut` on: of a block of drafts the window keeps any number."""
    text = reference[f"greedy_{number}"].tolist()
    return [*reference[f"prompt_{number}"].tolist(), *text[:cut], *((token + 1) % 400 for token in text[cut:])]


def questions(reference: dict[str, np.ndarray], *, times: int) -> tuple[Question, ...]:
    return tuple(
        Question(
            mode=Mode.GREEDY,
            request=GenerateRequest(
                request_id=f"prompt {number}, time {time}",
                prompt_ids=tuple(reference[f"prompt_{number}"].tolist()),
                max_tokens=TOKENS,
                sampling=SamplingSettings(temperature=0.0),
            ),
        )
        for time in range(times)
        for number in range(3)
    )


async def test_replies_are_the_peers_texts_with_and_without_drafts(
    family: tuple[Service, dict[str, np.ndarray]],
) -> None:
    service, reference = family
    for speculation, times in ((PLAIN, 1), (SPECULATING, 3)):
        replies = await replies_to(
            questions(reference, times=times), verifier=verifier_client(), streams=8, speculation=speculation
        )
        assert len(replies) == 3 * times
        for name, reply in replies.items():
            wanted = reference[f"greedy_{name.split()[1].rstrip(',')}"].tolist()
            assert list(reply.token_ids) == wanted, name
    page = metrics(service.url)
    drafted, kept = (page.total(f"spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
    assert 0 < kept < drafted
    # The same prompts came again, the longest of them of several pages.
    assert page.total("prefix_cache_hits_total") > 0


def test_it_chats(family: tuple[Service, dict[str, np.ndarray]]) -> None:
    service, _ = family
    body = {"model": service.model, "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 8}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
