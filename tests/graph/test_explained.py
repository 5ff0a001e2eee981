"""What the service says about speculation: at its start, with each reply, and in its metrics."""

import json
from typing import Any

import httpx
import pytest

from serve_app.local import Service
from tests.graph.stage import Page, idle, metrics, until

pytestmark = pytest.mark.serve

SPOKEN = {
    "draft_n": "spec_decode_num_draft_tokens_total",
    "draft_n_accepted": "spec_decode_num_accepted_tokens_total",
    "draft_rounds": "spec_decode_num_drafts_total",
}


def ask(service: Service, *, seed: int, **more: Any) -> dict[str, Any]:
    body = {"model": service.model, "prompt": list(range(10 + seed, 40 + seed)), "max_tokens": 300, "temperature": 0}
    answer = httpx.post(f"{service.url}/v1/completions", json=body | more, timeout=60.0)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def grown(name: str, *, before: Page, after: Page) -> float:
    return after.total(name) - before.total(name)


def test_the_start_up_line_says_what_is_used_and_why(golden_service: Service) -> None:
    printed = [line for log in golden_service.logs.glob("worker-*.err") for line in log.read_text().splitlines()]
    lines = [json.loads(text) for text in printed if '"event": "speculation"' in text]
    (line,) = [line for line in lines if line["method"] == "ngram"]
    assert (line["used"], line["draft_k"], line["gated"], line["refused_rungs"]) == (True, 7, False, 0)
    assert line["message"] == "speculation: not gated on this chip"
    assert (line["state"], line["reason"]) == ("forced", "picked")
    assert "by hand" in line["sentence"]


def test_the_counters_are_the_sum_of_what_the_replies_say(golden_service: Service) -> None:
    before = until(lambda: metrics(golden_service.url), holds=idle, within_s=10.0)
    replies = [ask(golden_service, seed=seed) for seed in range(6)]
    after = until(lambda: metrics(golden_service.url), holds=idle, within_s=10.0)
    timings = [reply["timings"] for reply in replies]
    details = [reply["metrics"]["speculative_decoding"] for reply in replies]
    for said, counted in SPOKEN.items():
        assert sum(each.get(said, 0) for each in timings) == grown(counted, before=before, after=after), said
    assert sum(each.get("draft_rounds", 0) for each in timings) > 0
    assert sum(each["num_draft_tokens"] for each in details) == sum(each.get("draft_n", 0) for each in timings)
    for reason in {reason for each in details for reason in each["declined"]}:
        told = sum(each["declined"].get(reason, 0) for each in details)
        counted = "spec_decode_declined_total"
        assert told == after.total(counted, reason=reason) - before.total(counted, reason=reason), reason
    tokens = sum(each["predicted_n"] for each in timings)
    assert tokens == grown("generation_tokens_total", before=before, after=after)
    prompts = sum(each["prompt_n"] + each["cache_n"] for each in timings)
    assert prompts == grown("prompt_tokens_total", before=before, after=after) == 180


def test_every_window_of_a_reply_is_accounted_for(golden_service: Service) -> None:
    """A window after the first either had a draft or declined one, and emits one token more than it accepted."""
    for seed in range(3):
        reply = ask(golden_service, seed=seed)
        details, timings = reply["metrics"]["speculative_decoding"], reply["timings"]
        windows = details["num_spec_steps"] + sum(details["declined"].values())
        ends_early = reply["choices"][0]["finish_reason"] == "stop"
        assert timings["predicted_n"] + ends_early == 1 + windows + details["num_accepted_draft_tokens"]
        assert sum(details["acceptance_histogram"]) == details["num_spec_steps"]


def test_timings_are_on_the_last_chunk_of_a_stream(golden_service: Service) -> None:
    body = {"model": golden_service.model, "prompt": [5, 6, 7], "max_tokens": 30, "temperature": 0, "stream": True}
    answer = httpx.post(f"{golden_service.url}/v1/completions", json=body, timeout=60.0)
    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [("timings" in frame, "metrics" in frame) for frame in frames[:-1]] == [(False, False)] * (len(frames) - 1)
    assert {"predicted_n", "predicted_ms", "prompt_n", "cache_n"} <= frames[-1]["timings"].keys()
    assert frames[-1]["choices"][0]["finish_reason"]
    assert frames[-1]["metrics"]["speculative_decoding"]["num_spec_tokens"] == 7


def test_declined_by_request_is_said_and_counted(golden_service: Service) -> None:
    before = metrics(golden_service.url)
    reply = ask(golden_service, seed=1, max_tokens=20, speculation={"enabled": False})
    assert not {"draft_n", "draft_kind"} & reply["timings"].keys()
    declined = reply["metrics"]["speculative_decoding"]["declined"]
    assert declined.keys() == {"disabled_by_request"}
    counted = metrics(golden_service.url).total("spec_decode_declined_total", reason="disabled_by_request")
    assert counted - before.total("spec_decode_declined_total", reason="disabled_by_request") == sum(declined.values())


def test_every_replica_is_on_the_page_with_its_labels(golden_service: Service) -> None:
    # Encodes something, without which a tokenizer has counted nothing yet.
    assert httpx.get(f"{golden_service.url}/health", timeout=30.0).status_code == 200
    page = metrics(golden_service.url)
    seen = {
        (labels["deployment"], labels["chip"]): labels["replica"]
        for rows in page.samples.values()
        for labels, _ in rows
    }
    assert seen.keys() == {(name, "cpu") for name in ("ingress", "tokenizer", "drafter", "verifier")}
    assert len(set(seen.values())) == 4
    assert all(name.startswith("outrider_") for name in page.samples)
