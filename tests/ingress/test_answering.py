"""Streams, frame by frame."""

import asyncio
from typing import Any

from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest
from tests.ingress.conftest import Running, Serve, events_of
from tests.ingress.fakes import MODEL, Step, chunks


async def _streamed(running: Running, /, **fields: Any) -> list[dict[str, Any]]:
    response = await running.post_chat(stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def test_role_first_then_text_then_the_end_with_its_statistics(serve: Serve) -> None:
    async with serve() as running:
        events = await _streamed(running)
        await running.idle()
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "hell"},
        {"content": "o wo"},
        {"content": "rld"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 4 + ["stop"]
    assert len({event["id"] for event in events}) == 1
    assert {(event["object"], event["model"]) for event in events} == {("chat.completion.chunk", MODEL)}
    assert all("usage" not in event for event in events)
    assert all("timings" not in event for event in events[:-1])
    assert events[-1]["timings"]["draft_n"] == 13
    assert events[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] == 5


async def test_usage_comes_last_and_is_null_before(serve: Serve) -> None:
    async with serve() as running:
        events = await _streamed(running, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 11
    assert events[-1]["metrics"] == events[-2]["metrics"]


async def test_completions_stream_text(serve: Serve) -> None:
    async with serve() as running:
        response = await running.post_completion(stream=True, stream_options={"include_usage": False})
    events = events_of(response.text)
    assert {event["object"] for event in events} == {"text_completion"}
    assert [event["choices"][0]["text"] for event in events] == ["hell", "o wo", "rld", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_characters_and_stop_strings_are_never_split(serve: Serve) -> None:
    async with serve(script=lambda _: chunks("né 🙂 END more", size=1)) as running:
        events = await _streamed(running, stop="END")
    texts = [event["choices"][0]["delta"].get("content") for event in events]
    assert texts == ["", "n", "é", " ", "🙂", " ", None]


async def test_what_a_stop_string_held_back_is_sent_at_the_end(serve: Serve) -> None:
    async with serve(script=lambda _: chunks("to be EN")) as running:
        events = await _streamed(running, stop="END")
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "to be EN"


async def test_three_choices_interleave_and_each_ends_once(serve: Serve) -> None:
    def script(request: GenerateRequest) -> list[Any]:
        return list(chunks(f"reply {request.choice} {'x' * request.choice * 8}"))

    async with serve(script=script) as running:
        events = await _streamed(running, n=3, stream_options={"include_usage": True})
        await running.idle()
    assert [event["choices"][0]["delta"].get("role") for event in events[:3]] == ["assistant"] * 3
    choices = [event["choices"][0] for event in events[:-1]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        text = "".join(choice["delta"].get("content", "") for choice in own)
        assert text == f"reply {index} {'x' * index * 8}"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
        assert own[-1]["finish_reason"] == "stop"
    # They were generated together, not one after the other.
    assert [choice["index"] for choice in choices[3:6]] == [0, 1, 2]
    assert events[-1]["usage"]["completion_tokens"] == 8 * 3 + 24


async def test_text_is_sent_as_soon_as_it_is_there(serve: Serve) -> None:
    gate = asyncio.Event()
    first, *rest = chunks("one two ")

    async with (
        serve(script=lambda _: [first, gate, *rest]) as running,
        running.http.stream("POST", "/v1/chat/completions", json={**running.chat, "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        async with asyncio.timeout(2):
            while '"one "' not in await anext(lines):
                pass
        gate.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_an_error_midway_is_a_frame_and_the_end(serve: Serve) -> None:
    def script(request: GenerateRequest) -> list[Step]:
        broken = Unavailable("The verifier went away; send the request again.")
        return [*chunks("four")[:-1], broken] if request.choice else [*chunks("more")[:-1], asyncio.Event()]

    async with serve(script=script) as running:
        response = await running.post_chat(stream=True, n=2)
        await running.idle()
        assert running.metrics.value("ingress_stream_errors_total") == 1
        assert (await running.http.get("/health")).status_code == 200
    last = response.text.split("\n\n")[-2]
    assert last.startswith('data: {"error":{"message":"The verifier went away')
    assert "[DONE]" not in response.text


async def test_latencies_and_tokens_are_counted(serve: Serve) -> None:
    async with serve() as running:
        await _streamed(running, n=2)
        value = running.metrics.value
        assert value("ingress_time_to_first_token_seconds_count") == 1
        assert value("ingress_inter_token_seconds_count") == 2 * (11 - 4)
        assert value("ingress_completion_tokens_total") == 22
        assert value("ingress_prompt_tokens_total") == 17
