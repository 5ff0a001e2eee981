"""The run-time checks themselves: that they are on where arrays live, and refuse what they should."""

import os
from typing import Protocol

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float32, TypeCheckError, jaxtyped

from deployments.lm.layers import RMSNorm
from tests.typechecks import check


class Doubler(Protocol):
    """Not declared runtime-checkable, like the ports of the product."""

    def double(self, x: int, /) -> int: ...


class Right:
    """Fits."""

    def double(self, x: int, /) -> int:
        return 2 * x


@jaxtyped(typechecker=check)
def add(
    a: Float32[np.ndarray, "rows width"], b: Float32[np.ndarray, "rows width"]
) -> Float32[np.ndarray, "rows width"]:
    total: np.ndarray = a + b
    return total


@check
def doubled(x: int, doubler: Doubler) -> int:
    return doubler.double(x)


def test_shapes_must_agree() -> None:
    two_by_three = np.zeros((2, 3), np.float32)

    assert add(two_by_three, two_by_three).shape == (2, 3)
    with pytest.raises(TypeCheckError, match="rows"):
        add(two_by_three, np.zeros((1, 3), np.float32))
    with pytest.raises(TypeCheckError):
        add(two_by_three, two_by_three.astype(np.float64))


def test_protocols_are_compared_by_their_methods() -> None:
    assert doubled(3, Right()) == 6
    with pytest.raises(BeartypeCallHintViolation):
        doubled(3, object())  # type: ignore[arg-type]  # the point of the test


@pytest.mark.skipif(os.environ.get("OUTRIDER_TEST_TYPECHECK") == "0", reason="turned off by hand")
def test_the_rooms_with_arrays_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        RMSNorm("not an array", epsilon=1e-5)  # type: ignore[arg-type]  # the point of the test
