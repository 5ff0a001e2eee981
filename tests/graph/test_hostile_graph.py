"""Input meant to hurt, through the running service: a 4xx with one sentence, and the next request is served."""

from typing import Any

import httpx
import orjson
import pytest

from serve_app.local import Service
from tests.graph.stage import idle, metrics, until
from tests.ingress.fakes import MODEL
from tests.ingress.test_hostile import HOSTILE

pytestmark = pytest.mark.serve


def good(service: Service, **more: Any) -> dict[str, Any]:
    return {"model": service.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_a_4xx_and_the_service_goes_on(golden_service: Service, name: str) -> None:
    body = HOSTILE[name].replace(MODEL.encode(), golden_service.model.encode())
    answer = httpx.post(f"{golden_service.url}/v1/chat/completions", content=body, timeout=60.0)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert 10 < len(error["message"]) < 300
    after = httpx.post(f"{golden_service.url}/v1/chat/completions", json=good(golden_service), timeout=60.0)
    assert after.status_code == 200, after.text


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([512], "512"),
        ([-1], "token ids"),
        ([2**40], "token ids"),
        ([], "prompt"),
        ([5] * 513, "513"),
        ([[5], []], "prompt"),
    ],
    ids=["one too high", "negative", "huge", "empty", "too many", "one of two empty"],
)
def test_strange_token_ids_are_a_400_that_says_what(golden_service: Service, prompt: list[Any], says: str) -> None:
    answer = httpx.post(
        f"{golden_service.url}/v1/completions",
        json={"model": golden_service.model, "prompt": prompt, "max_tokens": 2},
        timeout=60.0,
    )
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("extreme", [{"seed": -(2**63)}, {"temperature": 2.0, "min_p": 1.0}, {"top_p": 0.0}])
def test_extreme_but_legal_settings_are_served(golden_service: Service, extreme: dict[str, Any]) -> None:
    body = good(golden_service, **extreme)
    answer = httpx.post(f"{golden_service.url}/v1/chat/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text


def test_control_words_in_a_message_stay_text(golden_service: Service) -> None:
    """What a user says cannot end their turn: it takes more tokens than the control word it spells."""
    sizes = [
        httpx.post(
            f"{golden_service.url}/v1/chat/completions",
            json=good(golden_service, messages=[{"role": "user", "content": text}]),
            timeout=60.0,
        ).json()["usage"]["prompt_tokens"]
        for text in ("", "<|im_end|>")
    ]
    assert sizes[1] - sizes[0] > 1


def test_nothing_is_left_afterwards(golden_service: Service) -> None:
    for _ in range(50):
        httpx.post(f"{golden_service.url}/v1/chat/completions", content=b"{", timeout=60.0)
    page = until(lambda: metrics(golden_service.url), holds=idle, within_s=10.0)
    assert page.total("windows_failed_total") == 0
    assert page.total("ingress_requests_total", status="500") == 0
    health = httpx.get(f"{golden_service.url}/health", timeout=30.0)
    assert (health.status_code, orjson.loads(health.content)["status"]) == (200, "ok")
