"""The int8 product against numpy at odd sizes, and the independence of its rows, bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lm.kernels.int8_linear import GROUP, multiply, pack

pytestmark = pytest.mark.usefixtures("native")

_multiply = jax.jit(lambda x, weights, scales, live: multiply(x, weights=weights, scales=scales, live=live))


def product(x: np.ndarray, *, levels: np.ndarray, scales: np.ndarray, live: int | None = None) -> np.ndarray:
    rows = len(x) if live is None else live
    return np.asarray(_multiply(jnp.asarray(x), jnp.asarray(pack(levels)), jnp.asarray(scales), jnp.int32(rows)))


def made(*, rows: int, inputs: int, outputs: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng((seed, rows, inputs, outputs))
    x = rng.normal(size=(rows, inputs)) * rng.exponential(size=(rows, 1)) * np.exp(rng.normal(size=inputs))
    levels = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    return x.astype(np.float32), levels, rng.uniform(1e-3, 1e-2, outputs).astype(np.float32)


def expected(x: np.ndarray, *, levels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Each group of 32 inputs rounded to 127 steps of its largest, in float64."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).astype(np.float64).reshape(len(x), -1, GROUP)
    steps = np.abs(padded).max(axis=-1, keepdims=True) / 127.0
    rounded = np.round(padded / np.where(steps > 0, steps, 1.0)) * steps
    return np.asarray(rounded.reshape(len(x), -1)[:, : x.shape[1]] @ levels.T.astype(np.float64) * scales)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 64, 128])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (64, 16), (33, 17), (1, 1), (100, 250), (96, 64)])
def test_products_are_those_of_the_rounded_rows(rows: int, inputs: int, outputs: int) -> None:
    x, levels, scales = made(rows=rows, inputs=inputs, outputs=outputs, seed=0)
    wanted = expected(x, levels=levels, scales=scales)
    found = product(x, levels=levels, scales=scales)

    # A value half-way between two steps may round either way in f32: at most one step of one input.
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max() + 1e-6)


def test_groups_lose_much_less_than_whole_rows_would() -> None:
    x, levels, scales = made(rows=16, inputs=576, outputs=320, seed=1)
    exact = x.astype(np.float64) @ levels.T.astype(np.float64) * scales
    steps = np.abs(x).max(axis=-1, keepdims=True) / 127.0
    whole = np.round(x / steps) * steps @ levels.T.astype(np.float64) * scales
    found = product(x, levels=levels, scales=scales)

    assert 0 < np.linalg.norm(found - exact) < 0.5 * np.linalg.norm(whole - exact)


@given(
    company=st.integers(1, 40),
    place=st.integers(0, 39),
    inputs=st.integers(1, 130),
    outputs=st.integers(1, 100),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_a_row_is_the_same_in_any_company(company: int, place: int, inputs: int, outputs: int, seed: int) -> None:
    place = place % company
    x, levels, scales = made(rows=company, inputs=inputs, outputs=outputs, seed=seed)
    alone = product(x[place : place + 1], levels=levels, scales=scales)
    together = product(x, levels=levels, scales=scales)

    np.testing.assert_array_equal(together[place].view(np.int32), alone[0].view(np.int32))


@pytest.mark.parametrize("live", [0, 1, 5, 8, 11])
def test_rows_past_the_live_ones_are_zero_and_change_nothing(live: int) -> None:
    x, levels, scales = made(rows=11, inputs=100, outputs=50, seed=2)
    x[live:] = np.nan
    found = product(x, levels=levels, scales=scales, live=live)

    assert not found[live:].any()
    if live:
        np.testing.assert_array_equal(found[:live], product(x[:live], levels=levels, scales=scales))


def test_zeros_and_extremes() -> None:
    levels = np.asarray([[127] * 40, [-127] * 40], np.int8)
    scales = np.ones(2, np.float32)
    x = np.stack([np.zeros(40), np.full(40, 3e33), np.full(40, -1e-30)]).astype(np.float32)
    found = product(x, levels=levels, scales=scales)

    assert not found[0].any()
    np.testing.assert_allclose(found[1], [127 * 40 * 3e33, -127 * 40 * 3e33], rtol=1e-5)
    np.testing.assert_allclose(found[2], [-127 * 40 * 1e-30, 127 * 40 * 1e-30], rtol=1e-5)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_does_not_come_out_as_one(strange: float) -> None:
    x, levels, scales = made(rows=9, inputs=70, outputs=20, seed=3)
    clean = product(x, levels=levels, scales=scales)
    x[4, 40] = strange
    found = product(x, levels=levels, scales=scales)

    assert np.isnan(found[4]).all()
    np.testing.assert_array_equal(np.delete(found, 4, axis=0), np.delete(clean, 4, axis=0))


def test_a_call_with_other_weights_is_refused() -> None:
    weights = jnp.asarray(pack(np.ones((16, 64), np.int8)))
    with pytest.raises(Exception, match="do not belong together"):
        _multiply(jnp.ones((8, 32), jnp.float32), weights, jnp.ones(16), jnp.int32(8)).block_until_ready()
