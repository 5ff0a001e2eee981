"""Clients that people have: the `openai` package as it is installed, and curl."""

import asyncio
import json
import subprocess

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from serve_app.local import Service

pytestmark = pytest.mark.serve

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture
def client(golden_service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{golden_service.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def aclient(golden_service: Service) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{golden_service.url}/v1", api_key="none", max_retries=0)


def test_models_are_listed(client: openai.OpenAI, golden_service: Service) -> None:
    assert [model.id for model in client.models.list()] == [golden_service.model]
    assert client.models.retrieve(golden_service.model).id == golden_service.model


def test_a_chat_reply_has_text_and_usage(client: openai.OpenAI, golden_service: Service) -> None:
    answer = client.chat.completions.create(
        model=golden_service.model, messages=MESSAGES, max_tokens=20, temperature=0.8, seed=7, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert all(choice.finish_reason in ("length", "stop") for choice in answer.choices)
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 40
    again = client.chat.completions.create(
        model=golden_service.model, messages=MESSAGES, max_tokens=20, temperature=0.8, seed=7, n=2
    )
    assert [choice.message.content for choice in again.choices] == [choice.message.content for choice in answer.choices]


def test_a_streamed_reply_is_the_same_text(client: openai.OpenAI, golden_service: Service) -> None:
    stream = client.chat.completions.create(
        model=golden_service.model,
        messages=MESSAGES,
        max_tokens=20,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    whole = client.chat.completions.create(model=golden_service.model, messages=MESSAGES, max_tokens=20, temperature=0)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_completions_take_text_and_token_ids(client: openai.OpenAI, golden_service: Service) -> None:
    text = client.completions.create(model=golden_service.model, prompt="once upon", max_tokens=8, temperature=0)
    ids = client.completions.create(model=golden_service.model, prompt=[5, 6, 7, 8], max_tokens=8, temperature=0)
    assert text.choices[0].text
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 4


async def test_eight_async_streams_at_once(aclient: openai.AsyncOpenAI, golden_service: Service) -> None:
    async def one(seed: int) -> str:
        stream = await aclient.chat.completions.create(
            model=golden_service.model, messages=MESSAGES, max_tokens=40, temperature=0.9, seed=seed, stream=True
        )
        return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

    together = await asyncio.gather(*(one(seed) for seed in range(8)))
    alone = [await one(seed) for seed in range(8)]
    assert together == alone
    assert len(set(together)) == 8
    await aclient.close()


def test_errors_arrive_as_the_package_expects_them(client: openai.OpenAI, golden_service: Service) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-99", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=golden_service.model, messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match=r"512") as long:
        client.completions.create(model=golden_service.model, prompt=[5] * 500, max_tokens=100)
    assert "500" in str(long.value)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_curl_streams(golden_service: Service, path: str) -> None:
    body = {"model": golden_service.model, "stream": True, "max_tokens": 12, "temperature": 0}
    body |= {"messages": MESSAGES} if path.startswith("chat") else {"prompt": "once upon"}
    command = ["curl", "-sSN", f"{golden_service.url}/v1/{path}", "-H", "Content-Type: application/json"]
    printed = subprocess.run(
        [*command, "-d", json.dumps(body)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    lines = [line for line in printed.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] in ("length", "stop")
    assert 0 < last["timings"]["predicted_n"] <= 12


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_reply_with_everything_on_is_the_plain_one(client: openai.OpenAI, temperature: float) -> None:
    """Penalties, bias, a least length and log-probabilities, with and without speculation: the same, bit by bit."""

    def asked(speculate: bool) -> tuple[str, list[tuple[str, float, list[tuple[str, float]]]]]:
        reply = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=MESSAGES,
            temperature=temperature,
            seed=5,
            max_tokens=60,
            frequency_penalty=0.4,
            presence_penalty=-0.2,
            logit_bias={"11": 2, "30": -100},
            logprobs=True,
            top_logprobs=3,
            extra_body={
                "repetition_penalty": 1.1,
                "min_tokens": 20,
                "speculation": {"enabled": speculate},
                "cache_prompt": speculate,
            },
        )
        (choice,) = reply.choices
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert reply.usage is not None
        assert len(choice.logprobs.content) == reply.usage.completion_tokens >= 20
        scores = [(t.token, t.logprob, [(o.token, o.logprob) for o in t.top_logprobs]) for t in choice.logprobs.content]
        return choice.message.content or "", scores

    assert asked(True) == asked(False)
