"""Bodies: what is accepted, and the one sentence for what is not."""

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.ingress.errors import FieldError
from deployments.ingress.reading import read_chat, read_completion

_CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


def _chat_error(**fields: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        read_chat(orjson.dumps({**_CHAT, **fields}))
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
        ({"model": 7}, "model"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [str(i) for i in range(10_000)]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a" * 1025]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"speculation": {"max_draft": -1}}, "speculation.max_draft"),
        ({"speculation": {"enabled": "yes"}}, "speculation.enabled"),
        ({"speculation": "off"}, "speculation"),
        ({"cache_prompt": "no"}, "cache_prompt"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "soon"}, "deadline_s"),
    ],
)
def test_a_bad_value_names_its_field(fields: dict[str, Any], param: str) -> None:
    error = _chat_error(**fields)
    assert (error.param, error.code) == (param, "invalid_value")
    assert str(error).startswith(f"{param} ")
    assert str(error).endswith(".")
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_a_known_parameter_is_never_ignored(fields: dict[str, Any], param: str) -> None:
    error = _chat_error(**fields)
    assert (error.param, error.code) == (param, "unsupported_parameter")
    assert param in str(error)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"best_of": 1}, "best_of"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"speculation": {"drafts": 1}}, "speculation.drafts"),
        ({"y" * 100_000: 1}, "y" * 80),
    ],
)
def test_an_unknown_parameter_is_named(fields: dict[str, Any], param: str) -> None:
    error = _chat_error(**fields)
    assert (error.param, error.code) == (param, "unknown_parameter")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_a_missing_parameter_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_chat(orjson.dumps(body))
    assert (caught.value.param, caught.value.code) == (param, "missing_required_parameter")


def test_defaults_that_clients_send_are_accepted() -> None:
    request = read_chat(
        orjson.dumps(
            {
                **_CHAT,
                "tools": [],
                "functions": None,
                "response_format": {"type": "text"},
                "logprobs": False,
                "top_logprobs": None,
                "logit_bias": {},
                "frequency_penalty": 0,
                "presence_penalty": 0.0,
                "user": "ann",
                "metadata": {"a": "b"},
                "store": False,
                "service_tier": "auto",
                "parallel_tool_calls": True,
                "safety_identifier": "x",
                "prompt_cache_key": "y",
                "n": None,
                "temperature": None,
                "stop": None,
                "stream": None,
                "stream_options": None,
                "speculation": None,
                "cache_prompt": None,
                "priority": None,
                "deadline_s": None,
            }
        )
    )
    assert request.choices == 1
    assert request.stop == ()


def test_an_answer_can_be_sent_back_as_a_message() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    body = {"model": "m", "messages": [*_CHAT["messages"], answer]}
    assert read_chat(orjson.dumps(body)).messages[1].content == "hello"


def test_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = read_chat(orjson.dumps({"model": "m", "messages": [{"role": "developer", "content": parts}]}))
    assert (request.messages[0].role, request.messages[0].content) == ("system", "a\nb")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_come_in_four_forms(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert read_completion(orjson.dumps({"model": "m", "prompt": prompt})).prompt == expected


@pytest.mark.parametrize("prompt", [None, [], [[]], [1, "a"], [True], [-1], [1.5], {"a": 1}, [[1], "a"]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(FieldError) as caught:
        read_completion(orjson.dumps({"model": "m", "prompt": prompt}))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"), ({"best_of": 3}, "best_of")],
)
def test_completions_refuse_their_own_unsupported_parameters(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_completion(orjson.dumps({**_COMPLETION, **fields}))
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_the_best_of_n_is_all_of_them() -> None:
    assert read_completion(orjson.dumps({**_COMPLETION, "n": 2, "best_of": 2})).choices == 2


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_a_small_seed_is_itself(seed: int) -> None:
    assert read_chat(orjson.dumps({**_CHAT, "seed": seed})).short_seed == seed


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_64_bit_seed_becomes_the_same_32_bits_each_time(seed: int) -> None:
    first, second = (read_chat(orjson.dumps({**_CHAT, "seed": seed})).short_seed for _ in range(2))
    assert first == second
    assert first is not None
    assert 0 <= first < 2**32


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_politely(body: bytes) -> None:
    with pytest.raises(FieldError):
        read_chat(body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    field=st.sampled_from(
        [
            "messages",
            "model",
            "temperature",
            "top_p",
            "seed",
            "n",
            "stop",
            "stream",
            "speculation",
            "tools",
            "logit_bias",
        ]
    ),
    value=_JSON,
)
def test_any_json_in_any_field_is_a_request_or_a_field_error(field: str, value: Any) -> None:
    with contextlib.suppress(FieldError):
        read_chat(orjson.dumps({**_CHAT, field: value}))
