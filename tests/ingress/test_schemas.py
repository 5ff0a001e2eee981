"""What a body may say about sampling, and what it is told when it says something else."""

from typing import Any

import orjson
import pytest

from deployments.ingress.errors import FieldError
from deployments.ingress.reading import read_chat, read_completion

_CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repetition_penalty"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0665": 1}}, "logit_bias"),
        ({"logit_bias": {"4294967296": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 100.1}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(513)}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.0}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_bad_value_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_chat(orjson.dumps({**_CHAT, **fields}))
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")
    assert str(caught.value).startswith(f"{param} ")
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [({}, None), ({"logprobs": None}, None), ({"logprobs": 0}, 0), ({"logprobs": 20}, 20)],
)
def test_completions_ask_for_alternatives_by_number(fields: dict[str, Any], alternatives: int | None) -> None:
    assert read_completion(orjson.dumps({**_COMPLETION, **fields})).alternatives == alternatives


@pytest.mark.parametrize("logprobs", [True, -1, 21])
def test_completions_refuse_other_numbers(logprobs: Any) -> None:
    with pytest.raises(FieldError) as caught:
        read_completion(orjson.dumps({**_COMPLETION, "logprobs": logprobs}))
    assert (caught.value.param, caught.value.code) == ("logprobs", "invalid_value")


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [({"top_logprobs": 0}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_chats_ask_for_alternatives_with_two_fields(fields: dict[str, Any], alternatives: int | None) -> None:
    assert read_chat(orjson.dumps({**_CHAT, **fields})).alternatives == alternatives


def test_a_bias_is_read_from_its_names() -> None:
    bias = {"7": -100, "0": 2.5, "07": 100}
    assert read_chat(orjson.dumps({**_CHAT, "logit_bias": bias})).logit_bias == ((7, 100.0), (0, 2.5))


def test_llama_cpps_name_of_the_repetition_penalty_is_another_name() -> None:
    assert read_chat(orjson.dumps({**_CHAT, "repeat_penalty": 1.3})).repetition == 1.3
    assert read_chat(orjson.dumps({**_CHAT, "repeat_penalty": 1.3, "repetition_penalty": 1.3})).repetition == 1.3
    assert read_chat(orjson.dumps(_CHAT)).repetition == 1.0
