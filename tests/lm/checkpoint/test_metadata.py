"""Metadata values come as the type that is asked for, or not at all."""

import math

import pytest

from deployments.lm.checkpoint.metadata import architecture_name, typed
from deployments.messages.errors import CheckpointError


def test_numbers_are_whole_or_not_as_asked_for() -> None:
    assert repr(typed(3, float, key="k", source="m")) == "3.0"
    assert repr(typed(3.0, int, key="k", source="m")) == "3"
    assert repr(typed(True, bool, key="k", source="m")) == "True"
    assert typed(2**64 - 1, int, key="k", source="m") == 2**64 - 1
    assert typed([1], list, key="k", source="m") == [1]


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (1.5, int, "m: k is float, expected int"),
        (True, int, "m: k is bool, expected int"),
        (True, float, "m: k is bool, expected float"),
        (1, bool, "m: k is int, expected bool"),
        ("1", int, "m: k is str, expected int"),
        ({}, list, "m: k is dict, expected list"),
    ],
)
def test_other_types_are_refused(value: object, kind: type, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        typed(value, kind, key="k", source="m")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("kind", [int, float])
def test_numbers_that_no_setting_can_have_are_refused(value: float, kind: type) -> None:
    with pytest.raises(CheckpointError, match="m: k is no number that it can be"):
        typed(value, kind, key="k", source="m")


def test_a_large_float_is_no_whole_number_of_a_setting() -> None:
    assert typed(1e30, float, key="k", source="m") == 1e30
    with pytest.raises(CheckpointError, match="m: k is no number that it can be"):
        typed(1e30, int, key="k", source="m")


def test_architectures_can_be_shown() -> None:
    assert architecture_name("qwen3_5_moe_text", source="m") == "qwen3_5_moe_text"
    for name in ("", "a\nb", "a" * 65):
        with pytest.raises(CheckpointError, match="m: its architecture is not a name; download"):
            architecture_name(name, source="m")
