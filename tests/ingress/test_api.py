"""The routes over real HTTP: shapes of answers, of refusals, and what reaches the verifier."""

import asyncio
from typing import Any

import pytest

from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import ContextTooLong, DeadlinePassed, InvalidRequest, QueueFull, Unavailable
from deployments.messages.generation import FinishReason, GenerateRequest
from tests.ingress.conftest import Serve, error_of
from tests.ingress.fakes import END, MODEL, STATISTICS, FakeDrafter, Step, chunks, until


async def test_a_chat_reply_has_every_key(serve: Serve) -> None:
    async with serve() as running:
        reply = (await running.post_chat()).json()
    assert reply.pop("id").startswith("chatcmpl-")
    assert reply.pop("created") > 1_700_000_000
    timings, metrics = reply.pop("timings"), reply.pop("metrics")
    assert (timings["draft_kind"], timings["cache_n"]) == ("ngram", 1)
    assert metrics["speculative_decoding"]["num_draft_tokens"] == STATISTICS.draft_n
    assert reply == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 17,
            "completion_tokens": 11,
            "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


async def test_a_completion_has_every_key(serve: Serve) -> None:
    async with serve(script=lambda _: chunks("upon", reason=FinishReason.LENGTH)) as running:
        reply = (await running.post_completion()).json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["choices"] == [{"index": 0, "text": "upon", "logprobs": None, "finish_reason": "length"}]
    assert reply["usage"]["total_tokens"] == 8


async def test_what_the_client_asks_for_reaches_the_verifier(serve: Serve) -> None:
    async with serve(context=100) as running:
        await running.post_chat(
            temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=42, max_completion_tokens=9,
            speculation={"enabled": True, "max_draft": 2}, cache_prompt=False, priority=-3, deadline_s=2,
        )  # fmt: skip
        await running.post_chat()
        await running.post_completion(top_p=0, top_k=-1, speculation={"enabled": False})
        first, second, third = running.verifier.requests
    assert (first.max_tokens, first.end_ids, first.choice) == (9, (END,), 0)
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, first.speculation.max_draft) == (42, 2)
    assert bytes(first.prompt_ids) == b"user: Say hello.\n"
    assert (first.cache_prompt, first.priority, first.deadline_s) == (False, -3, 2.0)
    assert (second.cache_prompt, second.priority, second.deadline_s) == (True, 0, None)
    # A chat may use the rest of the context, a completion 16 tokens; the seed is drawn where none is given.
    assert (second.max_tokens, third.max_tokens) == (100 - 17, 16)
    assert second.sampling.temperature == 1.0
    assert second.sampling.seed != third.sampling.seed
    assert (third.sampling.temperature, third.sampling.top_k, third.speculation.enabled) == (0.0, 0, False)


async def test_prompts_and_choices_are_numbered_through(serve: Serve) -> None:
    def script(request: GenerateRequest) -> list[Any]:
        return list(chunks(f"{bytes(request.prompt_ids).decode()}{request.choice}"))

    async with serve(script=script) as running:
        response = await running.post_completion(prompt=["a", "bb"], n=2, seed=-1)
        reply, seeds = response.json(), {request.sampling.seed for request in running.verifier.requests}
        await running.idle()
    assert [choice["text"] for choice in reply["choices"]] == ["a0", "a1", "bb0", "bb1"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert len(seeds) == 1
    assert len({request.request_id for request in running.verifier.requests}) == 4
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (3, 10)
    # What belongs to one choice is in the choice.
    assert (reply["timings"], reply["metrics"]) == (None, None)
    assert all(choice["timings"]["draft_kind"] == "ngram" for choice in reply["choices"])


async def test_token_ids_are_prompts_too(serve: Serve) -> None:
    async with serve() as running:
        assert (await running.post_completion(prompt=[72, 105])).status_code == 200
        assert running.tokenizer.texts == []
        error = error_of(await running.post_completion(prompt=[72, 257]))
    assert error["param"] == "prompt"
    assert "below 257" in error["message"]


async def test_a_stop_string_ends_the_reply_and_frees_the_slot(serve: Serve) -> None:
    endless = asyncio.Event()

    def script(_: GenerateRequest) -> list[Step]:
        return [*chunks("one two three", size=7)[:-1], endless]

    async with serve(script=script) as running:
        reply = (await running.post_chat(stop=["wo t", "zzz"])).json()
        await running.idle()
        assert running.metrics.value("ingress_stop_string_hits_total") == 1
    assert reply["choices"][0]["message"]["content"] == "one t"
    assert reply["choices"][0]["finish_reason"] == "stop"
    # Nine tokens complete the stop string; the rest of their chunk does not count.
    assert reply["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_reply_does_not_depend_on_how_it_was_chunked(serve: Serve, size: int) -> None:
    async with serve(script=lambda _: chunks("naïve 🙂 stop here", size=size)) as running:
        reply = (await running.post_chat(stop="stop")).json()
    assert reply["choices"][0]["message"]["content"] == "naïve 🙂 "
    assert reply["usage"]["completion_tokens"] == len("naïve 🙂 stop".encode())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_unknown_model_is_404(serve: Serve, path: str) -> None:
    async with serve() as running:
        both = {"model": "gpt-4o", "prompt": "x"} if "chat" not in path else {**running.chat, "model": "gpt-4o"}
        response = await running.http.post(path, json=both)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert MODEL in error["message"]


@pytest.mark.parametrize("fields", [{"max_tokens": 84}, {"messages": [{"role": "user", "content": "x" * 200}]}])
async def test_too_long_is_400_with_both_numbers(serve: Serve, fields: dict[str, Any]) -> None:
    async with serve(context=100) as running:
        response = await running.post_chat(**fields)
        assert running.verifier.requests == []
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "100" in error["message"]
    assert ("17" if "max_tokens" in fields else "207") in error["message"]


async def test_an_exact_fit_is_served(serve: Serve) -> None:
    async with serve(context=100) as running:
        assert (await running.post_chat(max_tokens=83)).status_code == 200


async def test_a_prompt_without_tokens_is_refused(serve: Serve) -> None:
    async with serve() as running:
        assert error_of(await running.post_completion(prompt=["a", ""]))["param"] == "prompt"


async def test_a_model_without_a_template_says_so(serve: Serve) -> None:
    async with serve(has_chat_template=False) as running:
        assert "/v1/completions" in error_of(await running.post_chat())["message"]


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (QueueFull("The queue is full; try again later.", 3), 429, "queue_full", "3"),
        (Unavailable("The verifier is away; try again."), 503, "unavailable", "1"),
        (DeadlinePassed("No slot was free in time."), 503, "deadline_passed", "1"),
        (ContextTooLong("Too long: 5 of 4 tokens.", "messages"), 400, "context_length_exceeded", None),
        (InvalidRequest("No such thing.", "messages"), 400, "invalid_value", None),
        (RuntimeError("secret"), 500, "internal_error", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_verifier_is_a_status(
    serve: Serve, error: Exception, status: int, code: str, retry_after: str | None, stream: bool
) -> None:
    async with serve(script=lambda _: [error]) as running:
        response = await running.post_chat(stream=stream, n=2)
        await running.idle()
        assert running.metrics.value("ingress_requests_total", route="chat", status=str(status)) == 1
        assert running.metrics.value("ingress_queue_refusals_total") == (status == 429)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert response.headers.get("retry-after") == retry_after
    assert "secret" not in response.text


async def test_an_error_of_the_tokenizer_is_a_status(serve: Serve) -> None:
    async with serve() as running:
        await running.post_chat()
        running.tokenizer.error = InvalidRequest("The roles must alternate.", "messages")
        response = await running.post_chat()
        await running.idle()
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")


async def test_a_verifier_that_stops_without_a_reason_is_not_mistaken_for_an_end(serve: Serve) -> None:
    async with serve(script=lambda _: chunks("half")[:-1]) as running:
        assert (await running.post_chat()).status_code == 503


async def test_more_than_the_limit_is_refused_and_the_rest_goes_on(serve: Serve) -> None:
    gate = asyncio.Event()
    settings = IngressSettings(max_in_flight=3, max_choices=2, retry_after_s=5)
    async with serve(script=lambda _: [gate, *chunks("ok")], settings=settings) as running:
        first = asyncio.create_task(running.post_chat(n=2))
        await until(lambda: running.verifier.open == 2)
        refused = await running.post_chat(n=2)
        second = asyncio.create_task(running.post_chat())
        await until(lambda: running.verifier.open == 3)
        gate.set()
        assert [(await first).status_code, (await second).status_code] == [200, 200]
        await running.idle()
    assert (refused.status_code, refused.headers["retry-after"], error_of(refused)["code"]) == (429, "5", "queue_full")


async def test_too_many_choices_are_refused(serve: Serve) -> None:
    async with serve() as running:
        assert "16" in error_of(await running.post_completion(prompt=["a"] * 9, n=2))["message"]


async def test_a_request_may_not_take_longer_than_allowed(serve: Serve) -> None:
    settings = IngressSettings(request_timeout_s=0.1)
    async with serve(script=lambda _: [asyncio.Event()], settings=settings) as running:
        response = await running.post_chat()
        await running.idle()
    assert (response.status_code, error_of(response)["code"]) == (504, "timeout")


async def test_models(serve: Serve) -> None:
    async with serve() as running:
        listed = (await running.http.get("/v1/models")).json()
        one = (await running.http.get(f"/v1/models/{MODEL}")).json()
        missing = await running.http.get("/v1/models/acme/other")
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["created"], one["owned_by"]) == (MODEL, "model", 1_700_000_000, "outrider")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "model_not_found")


async def test_the_served_name_can_be_set(serve: Serve) -> None:
    async with serve(settings=IngressSettings(served_model="parrot")) as running:
        reply = (await running.post_chat(model="parrot")).json()
        assert (await running.post_chat()).status_code == 404
    assert reply["model"] == "parrot"


async def test_health_follows_verifier_and_tokenizer(serve: Serve) -> None:
    async with serve(settings=IngressSettings(gather_timeout_s=0.1)) as running:
        healthy = await running.http.get("/health")
        running.verifier.hangs = True
        hanging = await running.http.get("/health")
        running.verifier.hangs, running.tokenizer.error = False, RuntimeError("gone")
        broken = await running.http.get("/health")
        running.tokenizer.error = None
        again = await running.http.get("/health")
    assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
    assert [hanging.status_code, broken.status_code, again.status_code] == [503, 503, 200]
    assert error_of(hanging)["code"] == "unavailable"


async def test_a_verifier_that_is_not_there_yet_is_503_and_is_asked_again(serve: Serve) -> None:
    async with serve(settings=IngressSettings(control_timeout_s=0.1)) as running:
        running.verifier.hangs = True
        early = await running.post_chat()
        running.verifier.hangs = False
        assert (await running.post_chat()).status_code == 200
    assert early.status_code == 503
    assert "not loaded yet" in error_of(early)["message"]


async def test_metrics_of_all_deployments_come_as_one_page(serve: Serve) -> None:
    settings = IngressSettings(gather_timeout_s=0.1)
    async with serve(settings=settings, drafter=FakeDrafter()) as running:
        await running.post_chat()
        page = await running.http.get("/metrics")
        running.verifier.hangs = True
        partial = await running.http.get("/metrics")
        assert running.metrics.value("ingress_gather_failures_total", source="verifier") == 1
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert page.text.count("# TYPE outrider_tokens_total counter") == 1
    for sample in ('{replica="t"} 7.0', '{replica="v"} 9.0', '{replica="d"} 1.0'):
        assert f"outrider_tokens_total{sample}" in page.text
    assert 'outrider_ingress_requests_total{route="chat",status="200"} 1.0' in page.text
    assert 'replica="v"' not in partial.text
    assert 'replica="t"' in partial.text
