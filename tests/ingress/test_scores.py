"""Log-probabilities and the settings that change logits, over real HTTP and through OpenAI's own client."""

from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from deployments.ingress.scores import ScoredToken, completion_logprobs
from deployments.messages.generation import GenerateRequest, TokenChunk, TokenLogprob, TokenTable
from tests.ingress.conftest import Running, Serve, error_of, events_of
from tests.ingress.fakes import END, MODEL, Step, chunks

_HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say hello."}]


def score_of(token: int, /, *, most: int) -> TokenLogprob:
    """A made-up score by which a token is known again: the next byte is a little less likely."""
    own = -token / 1000
    return TokenLogprob(logprob=own, top=((token, own), ((token + 1) % 256, own - 0.5))[:most])


def scored(text: str | bytes, /, *, size: int = 4) -> Any:
    """A script that reports the log-probabilities it is asked for."""

    def script(request: GenerateRequest) -> list[Step]:
        return [_with_scores(chunk, most=request.logprobs) for chunk in chunks(text, size=size)]

    return script


def _with_scores(chunk: TokenChunk, *, most: int | None) -> TokenChunk:
    if most is None:
        return chunk
    return replace(chunk, logprobs=tuple(score_of(token, most=most) for token in chunk.token_ids))


async def test_a_chat_reports_token_logprob_bytes_and_alternatives(serve: Serve) -> None:
    async with serve(script=scored("hé")) as running:
        reply = (await running.post_chat(logprobs=True, top_logprobs=1)).json()
        silent = (await running.post_chat()).json()
    first, second, third = reply["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "h",
        "logprob": -0.104,
        "bytes": [104],
        "top_logprobs": [{"token": "h", "logprob": -0.104, "bytes": [104]}],
    }
    # Half a character reads as one that cannot be shown; its bytes tell what it is.
    assert [second["token"], third["token"]] == ["\N{REPLACEMENT CHARACTER}"] * 2
    assert bytes(second["bytes"] + third["bytes"]).decode() == "é"
    assert reply["choices"][0]["logprobs"]["refusal"] is None
    assert silent["choices"][0]["logprobs"] is None


async def test_a_completion_reports_four_lists(serve: Serve) -> None:
    async with serve(script=scored("hé!")) as running:
        reply = (await running.post_completion(logprobs=2)).json()
        bare = (await running.post_completion(logprobs=0)).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", "!"]
    assert logprobs["token_logprobs"] == [-0.104, -0.195, -0.169, -0.033]
    assert logprobs["top_logprobs"][0] == {"h": -0.104, "i": -0.604}
    # By complete characters: the two halves begin in the same place.
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert bare["choices"][0]["logprobs"]["top_logprobs"][0] == {"h": -0.104}


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, "o w", "zz"])
async def test_a_stream_says_the_same_as_one_piece(serve: Serve, size: int, stop: str | None) -> None:
    """Also where a stop string holds text back, or cuts a chunk short."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "stop": stop}
    async with serve(script=scored("né 🙂 hello world", size=size)) as running:
        whole = (await running.post_chat(**fields)).json()
        events = events_of((await running.post_chat(stream=True, **fields)).text)
    choices = [event["choices"][0] for event in events]
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert len(streamed) == whole["usage"]["completion_tokens"]
    assert (
        "".join(choice["delta"].get("content", "") for choice in choices) == (whole["choices"][0]["message"]["content"])
    )
    assert choices[-1]["logprobs"] is None


async def test_completions_stream_offsets_that_go_on(serve: Serve) -> None:
    async with serve(script=scored("hello", size=2)) as running:
        events = events_of((await running.post_completion(stream=True, logprobs=0)).text)
    found = [event["choices"][0]["logprobs"] for event in events]
    assert [logprobs["text_offset"] for logprobs in found[:-1]] == [[0, 1], [2, 3], [4]]


async def test_a_reply_without_tokens_has_none(serve: Serve) -> None:
    async with serve(script=scored("")) as running:
        reply = (await running.post_chat(logprobs=True)).json()
    assert reply["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_what_cannot_be_written_in_json_and_what_reads_the_same() -> None:
    table = TokenTable(blob=b"aab", ends=(1, 2, 3), special_ids=frozenset(), end_ids=(), has_chat_template=False)
    least = TokenLogprob(logprob=float("-inf"), top=((0, -0.5), (2, -1.0)))
    found = completion_logprobs([ScoredToken(token_id=1, offset=0, score=least)], table=table)

    assert found["token_logprobs"] == [-9999.0]
    assert found["top_logprobs"] == [{"a": -9999.0, "b": -1.0}]


async def test_openais_client_reads_both_shapes(serve: Serve) -> None:
    async with (
        serve(script=scored("hi")) as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client,
    ):
        chat = await client.chat.completions.create(model=MODEL, messages=_HELLO, logprobs=True, top_logprobs=2)
        text = await client.completions.create(model=MODEL, prompt="x", logprobs=1)
        stream = await client.chat.completions.create(model=MODEL, messages=_HELLO, logprobs=True, stream=True)
        events = [event async for event in stream]
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.bytes, len(entry.top_logprobs)) for entry in logprobs.content] == [
        ("h", [104], 2),
        ("i", [105], 2),
    ]
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["h", "i"]
    streamed = [event.choices[0].logprobs for event in events if event.choices[0].logprobs]
    assert [entry.token for one in streamed for entry in one.content or []] == ["h", "i"]


async def test_what_changes_logits_reaches_the_verifier(serve: Serve) -> None:
    async with (
        serve() as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client,
    ):
        await client.chat.completions.create(
            model=MODEL,
            messages=_HELLO,
            presence_penalty=-2.0,
            frequency_penalty=0.5,
            logit_bias={"104": -100, "5": 3},
            max_tokens=9,
            extra_body={"repetition_penalty": 1.1, "min_tokens": 9, "ignore_eos": True},
        )
        await running.post_completion(repeat_penalty=0.9, logit_bias={})
        first, second = running.verifier.requests
    sampling = first.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2.0, 0.5, 1.1)
    assert sampling.logit_bias == ((104, -100.0), (5, 3.0))
    assert (first.min_tokens, first.ignore_eos, first.logprobs, first.end_ids) == (9, True, None, (END,))
    assert (second.sampling.repetition_penalty, second.sampling.penalises, second.sampling.logit_bias) == (
        0.9,
        True,
        (),
    )
    assert (second.min_tokens, second.ignore_eos) == (0, False)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"logit_bias": {"257": 1}}, "logit_bias", "below 257"),
        ({"min_tokens": 17}, "min_tokens", "16"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens", "3"),
    ],
)
async def test_what_does_not_fit_the_model_or_the_request_is_refused(
    serve: Serve, fields: dict[str, Any], param: str, words: str
) -> None:
    async with serve() as running:
        response = await running.post_completion(**fields)
        assert running.verifier.requests == []
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert words in error["message"]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (2, "a"), (3, "a.b. a"), (9, "a.b. a. b")])
async def test_a_stop_string_waits_for_min_tokens(serve: Serve, size: int, min_tokens: int, text: str) -> None:
    """The first stop string is complete with the third token. What was text then does not end the reply later."""
    async with serve(script=lambda _: chunks("a.b. a. b", size=size)) as running:
        reply: Running = running
        answer = (await reply.post_chat(min_tokens=min_tokens, stop=[".b", ". b"])).json()
    assert answer["choices"][0]["message"]["content"] == text
