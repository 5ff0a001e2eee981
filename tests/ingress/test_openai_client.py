"""The `openai` package, unchanged, against the running ingress."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import QueueFull, Unavailable
from tests.ingress.conftest import Running, Serve
from tests.ingress.fakes import MODEL, chunks

_HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say hello."}]


def _client(running: Running, /, *, key: str = "any") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


async def test_async_chat_and_completion(serve: Serve) -> None:
    async with serve() as running, _client(running) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=_HELLO, seed=1, n=2)
        text = await client.completions.create(model=MODEL, prompt=[72, 105], extra_body={"top_k": 5})
    assert [choice.message.content for choice in chat.choices] == ["hello world"] * 2
    assert chat.usage is not None
    assert chat.usage.total_tokens == 17 + 22
    assert text.choices[0].text == "hello world"
    assert (text.model_extra or {})["timings"]["draft_kind"] == "ngram"


async def test_async_streaming(serve: Serve) -> None:
    async with serve() as running, _client(running) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=_HELLO, stream=True, stream_options={"include_usage": True}
        )
        events = [event async for event in stream]
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == "hello world"
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 11


async def test_the_streaming_helper_sees_a_whole_reply(serve: Serve) -> None:
    async with (
        serve() as running,
        _client(running) as client,
        client.chat.completions.stream(model=MODEL, messages=_HELLO) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "hello world"
    assert completion.choices[0].finish_reason == "stop"


async def test_sync_client(serve: Serve) -> None:
    def talk(url: str) -> tuple[str | None, str, list[str]]:
        with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=_HELLO).choices[0].message.content
            stream = client.completions.create(model=MODEL, prompt="Once", stream=True)
            text = "".join(event.choices[0].text for event in stream)
            return whole, text, [model.id for model in client.models.list()]

    async with serve() as running:
        assert await asyncio.to_thread(talk, running.url) == ("hello world", "hello world", [MODEL])


async def test_breaking_off_a_stream_frees_the_slot(serve: Serve) -> None:
    async with serve(script=lambda _: [*chunks("word " * 3)[:-1], asyncio.Event()]) as running:
        async with _client(running) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=_HELLO, stream=True)
            async for event in stream:
                if event.choices[0].delta.content:
                    break
            await stream.close()
        await running.idle()


async def test_errors_are_the_packages_own(serve: Serve) -> None:
    settings = IngressSettings(api_key_digests=(key_digest("right"),))
    async with serve(settings=settings, context=100) as running, _client(running, key="right") as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-4o", messages=_HELLO)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=_HELLO, temperature=3)
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model=MODEL, messages=_HELLO, max_tokens=1000, stream=True)
        async with _client(running, key="wrong") as stranger:
            with pytest.raises(openai.AuthenticationError) as denied:
                await stranger.models.list()
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert bad.value.param == "temperature"
    assert long.value.code == "context_length_exceeded"
    assert denied.value.code == "invalid_api_key"


async def test_a_full_queue_is_retried_by_the_package(serve: Serve) -> None:
    answers: Iterator[list[Any]] = iter([[QueueFull("Full; try again.", 1)], chunks("at last")])
    async with serve(script=lambda _: next(answers)) as running, _client(running) as client:
        reply = await client.with_options(max_retries=1).chat.completions.create(model=MODEL, messages=_HELLO)
    assert reply.choices[0].message.content == "at last"


async def test_an_error_midway_is_raised(serve: Serve) -> None:
    gone = Unavailable("The verifier went away; send the request again.")
    async with serve(script=lambda _: [*chunks("four")[:-1], gone]) as running, _client(running) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=_HELLO, stream=True)
        with pytest.raises(openai.APIError, match="went away"):
            async for _ in stream:
                pass
