"""The parts that architectures share: their rows do not depend on how many there are, bit by bit."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.layers import Activation, RMSNorm, rope_angles, rotate
from deployments.lm.quant.linear import Precision, build_linear

WIDTH, HEAD_DIM, ROWS = 64, 16, (8, 16, 32, 64, 128)

type Rows = Callable[[jax.Array, jax.Array], jax.Array]


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def heads_of(kv_heads: int) -> Rows:
    """Projected, normed and rotated, as attention does it: compilers join all of it to one loop."""
    linear = build_linear(drawn((4 + 2 * kv_heads) * HEAD_DIM, WIDTH, seed=1), precision=Precision.F32)
    norm = RMSNorm(jnp.asarray(1 + 0.1 * drawn(HEAD_DIM, seed=2)), epsilon=1e-6)
    frequencies = jnp.asarray(10_000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM), jnp.float32)

    def heads(x: jax.Array, positions: jax.Array) -> jax.Array:
        angles = jax.lax.optimization_barrier(rope_angles(positions, frequencies=frequencies))
        keys = norm(linear(x).reshape(x.shape[0], -1, HEAD_DIM)[:, 4 : 4 + kv_heads])
        return rotate(keys, cosine=angles[0], sine=angles[1])

    return heads


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_rotated_rows_do_not_depend_on_how_many_there_are(kv_heads: int) -> None:
    """With one head, loops over few rows and over many are compiled differently."""
    x, positions = jnp.asarray(drawn(max(ROWS), WIDTH, seed=3)), jnp.arange(max(ROWS), dtype=jnp.int32) + 5
    run = jax.jit(heads_of(kv_heads))
    found = {rows: np.asarray(run(x[:rows], positions[:rows])) for rows in ROWS}

    for rows in ROWS:
        np.testing.assert_array_equal(found[rows], found[max(ROWS)][:rows], err_msg=f"{rows} rows")


def test_rotation_is_the_one_written_down() -> None:
    """Also of pairs that stand still, and of dimensions past the last pair."""
    x, positions = drawn(8, 2, 10, seed=4), jnp.arange(8, dtype=jnp.int32)
    cosine, sine = rope_angles(positions, frequencies=jnp.asarray([0.5, 0.0], jnp.float32))
    turned = np.asarray(rotate(jnp.asarray(x), cosine=cosine, sine=sine))

    angle = np.arange(8)[:, None] * 0.5
    np.testing.assert_allclose(turned[..., 0], x[..., 0] * np.cos(angle) - x[..., 2] * np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(turned[..., 2], x[..., 2] * np.cos(angle) + x[..., 0] * np.sin(angle), atol=1e-6)
    np.testing.assert_array_equal(turned[..., [1, 3, *range(4, 10)]], x[..., [1, 3, *range(4, 10)]])


def test_what_is_no_number_stays_none() -> None:
    x = jnp.asarray([[[np.nan, 1.0, np.inf, 1.0]]] * 8, jnp.float32)
    cosine, sine = rope_angles(jnp.arange(8), frequencies=jnp.asarray([0.5, 0.1], jnp.float32))
    turned = np.asarray(rotate(x, cosine=cosine, sine=sine))

    assert not np.isfinite(turned[..., [0, 2]]).any()
    assert np.isfinite(turned[..., [1, 3]]).all()


def test_norms_without_a_weight_multiply_nothing() -> None:
    x = drawn(8, WIDTH, seed=5)
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-6)

    np.testing.assert_allclose(RMSNorm(None, epsilon=1e-6)(jnp.asarray(x)), wanted, rtol=1e-6)


def test_activations_are_the_ones_written_down() -> None:
    x = np.linspace(-6, 6, 64, dtype=np.float64)
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    found = {one: np.asarray(one(jnp.asarray(x, jnp.float32))) for one in Activation}

    np.testing.assert_allclose(found[Activation.GELU], gelu, atol=1e-6)
    np.testing.assert_allclose(found[Activation.SILU], x / (1 + np.exp(-x)), atol=1e-6)
