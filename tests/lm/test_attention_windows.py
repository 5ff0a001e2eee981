"""Attention to the last positions only, and with another scale: against numpy in float64, and bit by bit."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.attention import attend, write
from deployments.lm.kernels.choice import Kernels
from tests.lm import slots
from tests.lm.slots import PARTS, Layout, Part, Shape, attended, attending, cache_of, expected, same_bits

SMALL = Shape(heads=6, kv_heads=2, width=8, page_size=16)
OTHERS = (
    Shape(heads=4, kv_heads=1, width=24, page_size=8),
    Shape(heads=3, kv_heads=3, width=16, page_size=32),
)
CASES = (
    *((SMALL, window) for window in (1, 5, 16, 64, 100, 1000)),
    *((shape, window) for shape in OTHERS for window in (5, 100)),
)


def far(seen: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(seen - wanted).max())


@pytest.mark.parametrize(("shape", "window"), CASES, ids=str)
def test_rows_see_their_window_and_nothing_else(shape: Shape, window: int) -> None:
    seen = attended(PARTS, attending(window=window), shape=shape)
    for part, rows in zip(PARTS, seen, strict=True):
        assert far(rows, expected(part, shape=shape, window=window)) < 1e-5


def test_the_reference_notices_a_window_that_is_off_by_one() -> None:
    for part, rows in zip(PARTS[1:], attended(PARTS, attending(window=5), shape=SMALL)[1:], strict=True):
        for wrong in (4, 6):
            assert far(rows, expected(part, shape=SMALL, window=wrong)) > 1e-2


def test_bf16_caches_round_and_no_more() -> None:
    shape = replace(SMALL, dtype=jnp.bfloat16)
    for part, rows in zip(PARTS, attended(PARTS, attending(window=16), shape=shape), strict=True):
        assert far(rows, expected(part, shape=shape, window=16)) < 6e-2


@pytest.mark.parametrize("window", [None, 100])
def test_wide_heads_that_share_one_key(window: int | None) -> None:
    shape = Shape(heads=16, kv_heads=1, width=512, page_size=32)
    for part, rows in zip(PARTS, attended(PARTS, attending(window=window), shape=shape), strict=True):
        assert far(rows, expected(part, shape=shape, window=window)) < 2e-5


@pytest.mark.parametrize("scale", [1.0, 0.09])
def test_scores_are_scaled_as_asked(scale: float) -> None:
    for part, rows in zip(PARTS, attended(PARTS, attending(scale=scale), shape=SMALL), strict=True):
        assert far(rows, expected(part, shape=SMALL, scale=scale)) < 2e-5


def test_scores_stay_within_the_soft_cap() -> None:
    for part, rows in zip(PARTS, attended(PARTS, attending(softcap=1.5), shape=SMALL), strict=True):
        assert far(rows, expected(part, shape=SMALL, softcap=1.5)) < 1e-5
        assert part.start < 5 or far(rows, expected(part, shape=SMALL)) > 1e-2


def test_keys_and_values_side_by_side_are_the_same_keys_and_values() -> None:
    for dtype in (jnp.float32, jnp.bfloat16):
        apart = replace(SMALL, dtype=dtype)
        how = attending(window=64)
        same_bits(attended(PARTS, how, shape=replace(apart, halves=1)), attended(PARTS, how, shape=apart))


@pytest.mark.parametrize("window", [5, 64])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_has_the_same_bits_everywhere(dtype: jnp.dtype, window: int) -> None:
    slots.check_bits(attending(window=window), shape=replace(SMALL, dtype=dtype))


def test_a_window_longer_than_the_context_changes_no_bit() -> None:
    same_bits(
        attended(PARTS, attending(window=1000), shape=SMALL),
        attended(PARTS, attending(), shape=SMALL),
    )


@pytest.mark.parametrize("kernels", [Kernels.XLA, Kernels.NATIVE], ids=str)
def test_a_window_of_nothing_is_refused(kernels: Kernels) -> None:
    layout = Layout(rows=8, tiles=2)
    part = Part(slot=0, start=0, count=1)
    tiles = slots.tiles_of((part,), shape=SMALL, layout=layout)
    with pytest.raises(ValueError, match="give 1 or more"):
        attend(
            jnp.ones((8, 6, 8)),
            cache=jnp.asarray(cache_of((part,), shape=SMALL, layout=layout)),
            tiles=tiles,
            kernels=kernels,
            window=0,
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pages_before_every_window_are_not_read(dtype: jnp.dtype) -> None:
    slots.check_unread(attending(window=20), shape=replace(SMALL, dtype=dtype), window=20)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_no_number_reaches_no_row_that_does_not_see_it(dtype: jnp.dtype) -> None:
    slots.check_poison(attending(), shape=replace(SMALL, dtype=dtype))


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("nan")])
def test_a_soft_cap_of_nothing_is_refused(softcap: float) -> None:
    with pytest.raises(ValueError, match="give a positive one"):
        attended(PARTS[:1], attending(softcap=softcap), shape=SMALL)


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("halves", [1, 2])
def test_every_key_and_value_is_written_at_its_own_place(halves: int, kv_heads: int) -> None:
    rng = np.random.default_rng(4)
    before = rng.normal(size=(5, halves, kv_heads, 4, 6)).astype(np.float32)
    keys, values = rng.normal(size=(2, 3, kv_heads, 6 * halves // 2)).astype(np.float32)
    pages, offsets = (4, 1, 4), (0, 3, 2)

    written = np.asarray(
        write(
            jnp.asarray(before),
            keys=jnp.asarray(keys),
            values=jnp.asarray(values),
            pages=jnp.asarray(pages),
            offsets=jnp.asarray(offsets),
        )
    )

    wanted = before.copy()
    for row, (page, offset) in enumerate(zip(pages, offsets, strict=True)):
        pair = (keys[row], values[row])
        wanted[page, :, :, offset] = np.stack(pair) if halves == 2 else np.concatenate(pair, axis=-1)
    np.testing.assert_array_equal(written, wanted)


def test_values_that_are_no_numbers_are_written_as_zero() -> None:
    keys = jnp.asarray([[[np.nan, 1.0]], [[2.0, np.inf]]], jnp.float32)
    values = jnp.asarray([[[np.nan, 3.0]], [[-np.inf, 3.4e38]]], jnp.float32)
    cache = jnp.zeros((2, 2, 1, 2, 2), jnp.bfloat16)

    written = np.asarray(write(cache, keys=keys, values=values, pages=jnp.asarray([1, 1]), offsets=jnp.asarray([0, 1])))

    np.testing.assert_array_equal(written[1, 0, 0].astype(np.float32), keys[:, 0])
    np.testing.assert_array_equal(written[1, 1, 0].astype(np.float32), [[0.0, 3.0], [0.0, 0.0]])
    assert not written[0].any()
