"""What the verifier refuses on its own, whoever asks."""

from typing import Any

import pytest

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.checking import check_request

FINE: dict[str, Any] = {"request_id": "r", "prompt_ids": (0, 99), "max_tokens": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 20},
        {"end_ids": (10**6,)},
        {"min_tokens": 5},
        {"sampling": SamplingSettings(logit_bias=tuple((token, -100.0) for token in range(100)))},
    ],
)
def test_what_can_be_served_is_not_refused(fields: dict[str, Any]) -> None:
    check_request(GenerateRequest(**{**FINE, **fields}), vocabulary=100)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_ids": ()}, "prompt"),
        ({"prompt_ids": (100,)}, "prompt"),
        ({"prompt_ids": (-1,)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "top_logprobs"),
        ({"logprobs": -1}, "top_logprobs"),
        ({"end_ids": tuple(range(257))}, "end_ids"),
        ({"end_ids": (-1,)}, "end_ids"),
        ({"sampling": SamplingSettings(logit_bias=((100, 1.0),))}, "logit_bias"),
        ({"sampling": SamplingSettings(logit_bias=((-1, 1.0),))}, "logit_bias"),
        ({"sampling": SamplingSettings(logit_bias=((5, float("nan")),))}, "logit_bias"),
        ({"sampling": SamplingSettings(logit_bias=((5, 1.0), (5, 2.0)))}, "logit_bias"),
        ({"sampling": SamplingSettings(logit_bias=tuple((token % 100, 1.0) for token in range(513)))}, "logit_bias"),
        ({"sampling": SamplingSettings(repetition_penalty=0.0)}, "repetition_penalty"),
        ({"sampling": SamplingSettings(repetition_penalty=float("inf"))}, "repetition_penalty"),
        ({"sampling": SamplingSettings(presence_penalty=float("nan"))}, "presence_penalty"),
        ({"sampling": SamplingSettings(frequency_penalty=float("inf"))}, "frequency_penalty"),
    ],
)
def test_what_no_window_can_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(GenerateRequest(**{**FINE, **fields}), vocabulary=100)
    assert caught.value.param == param
