"""Sums of rows: the same bits however many rows there are, which a plain reduction does not give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.sums import row_sum, sum_in_order

ROWS = (8, 12, 16, 24, 32, 64, 128)


@pytest.fixture(scope="module", params=[32, 64, 576, 1536])
def matrix(request: pytest.FixtureRequest) -> jax.Array:
    rng = np.random.default_rng(request.param)
    return jnp.asarray(rng.normal(size=(max(ROWS), request.param)) * 10.0 ** rng.integers(-3, 4), jnp.float32)


def bits(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(np.uint32)


def test_a_row_sums_to_the_same_bits_beside_any_number_of_others(matrix: jax.Array) -> None:
    summed = jax.jit(row_sum)
    whole = bits(summed(matrix))

    for rows in ROWS:
        for start in (0, max(ROWS) - rows):
            np.testing.assert_array_equal(bits(summed(matrix[start : start + rows])), whole[start : start + rows])


def test_it_is_the_sum(matrix: jax.Array) -> None:
    exact = np.asarray(matrix, np.float64).sum(axis=-1, keepdims=True)
    scale = np.abs(np.asarray(matrix, np.float64)).sum(axis=-1, keepdims=True)

    assert np.max(np.abs(np.asarray(row_sum(matrix)) - exact) / scale) < 1e-6


def test_leading_axes_are_kept() -> None:
    x = jnp.arange(2 * 4 * 3, dtype=jnp.float32).reshape(2, 4, 3)

    np.testing.assert_array_equal(np.asarray(row_sum(x)), np.asarray(x).sum(axis=-1, keepdims=True))


def test_a_plain_sum_would_not_do() -> None:
    """The reason `row_sum` exists: XLA on CPU changes the order of a plain sum with the size of the array."""
    plain = jax.jit(lambda x: jnp.sum(x, axis=-1, keepdims=True))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(128, 64)), jnp.float32)
    whole = bits(plain(x))

    assert any((bits(plain(x[:rows])) != whole[:rows]).any() for rows in ROWS)


def test_parts_are_added_one_after_the_other() -> None:
    parts = np.random.default_rng(2).normal(size=(128, 8, 24)).astype(np.float32)
    wanted = parts[:, 0]
    for number in range(1, 8):
        wanted = wanted + parts[:, number]
    summed = jax.jit(sum_in_order)

    for rows in ROWS:
        np.testing.assert_array_equal(bits(summed(parts[:rows])), bits(jnp.asarray(wanted[:rows])))
