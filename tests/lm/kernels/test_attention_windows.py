"""The native attention to the last positions only, and with another scale: against numpy, and bit by bit."""

import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.kernels.choice import Kernels
from tests.lm import slots
from tests.lm.slots import PARTS, Attend, Shape, attended, attending, expected, same_bits

pytestmark = pytest.mark.usefixtures("native")


def shape(*, heads: int, kv_heads: int, width: int, page_size: int) -> Shape:
    return Shape(heads=heads, kv_heads=kv_heads, width=width, page_size=page_size, dtype=jnp.bfloat16)


# The queries of a tile that share a key are 12, 4, 64, 16 and 28: blocks of 6 and of 3 leave some over. Some widths end
# with half a vector.
SHAPES = (
    shape(heads=9, kv_heads=3, width=64, page_size=16),
    shape(heads=3, kv_heads=3, width=16, page_size=32),
    shape(heads=16, kv_heads=1, width=512, page_size=16),
    shape(heads=8, kv_heads=2, width=96, page_size=112),
    shape(heads=7, kv_heads=1, width=80, page_size=16),
)


def native(*, scale: float | None = None, window: int | None = None) -> Attend:
    return attending(kernels=Kernels.NATIVE, scale=scale, window=window)


def check(seen: list[np.ndarray], *, shape: Shape, scale: float | None = None, window: int | None = None) -> None:
    for part, rows in zip(PARTS, seen, strict=True):
        off = np.abs(rows - expected(part, shape=shape, scale=scale, window=window))
        # Queries and weights are rounded to bf16; a key or value of another position is off by about one.
        assert off.max() < 6e-2
        assert off.mean() < 5e-3


@pytest.mark.parametrize("window", [1, 5, 16, 64, 100, 1000, None])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_see_their_window_and_nothing_else(shape: Shape, window: int | None) -> None:
    check(attended(PARTS, native(window=window), shape=shape), shape=shape, window=window)


def test_the_reference_notices_a_window_that_is_off_by_one() -> None:
    seen = attended(PARTS, native(window=5), shape=SHAPES[0])
    for wrong in (4, 6):
        with pytest.raises(AssertionError):
            check(seen, shape=SHAPES[0], window=wrong)


@pytest.mark.parametrize("scale", [1.0, 0.09])
def test_scores_are_scaled_as_asked(scale: float) -> None:
    check(attended(PARTS, native(scale=scale), shape=SHAPES[1]), shape=SHAPES[1], scale=scale)


@pytest.mark.parametrize("window", [None, 5, 64, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_everywhere(shape: Shape, window: int | None) -> None:
    slots.check_bits(native(window=window), shape=shape)


def test_a_window_longer_than_the_context_changes_no_bit() -> None:
    for shape in SHAPES:
        same_bits(attended(PARTS, native(window=1000), shape=shape), attended(PARTS, native(), shape=shape))


def test_pages_before_every_window_are_not_read() -> None:
    slots.check_unread(native(window=20), shape=SHAPES[0], window=20)


def test_what_is_no_number_reaches_no_row_that_does_not_see_it() -> None:
    slots.check_poison(native(), shape=SHAPES[0])
