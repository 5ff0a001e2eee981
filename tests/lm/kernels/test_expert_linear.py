"""The product with many experts against the one with each of them, bit by bit, and its gates against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lm.kernels import expert_linear, int8_linear

pytestmark = pytest.mark.usefixtures("native")

EXPERTS, INPUTS, OUTPUTS = 6, 70, 37

_experts = jax.jit(
    lambda x, chosen, weights, scales, live, activation: expert_linear.multiply(
        x, chosen=chosen, weights=weights, scales=scales, live=live, activation=activation
    ),
    static_argnames="activation",
)
_one = jax.jit(lambda x, weights, scales, live: int8_linear.multiply(x, weights=weights, scales=scales, live=live))


@pytest.fixture(scope="module")
def weights() -> jax.Array:
    rng = np.random.default_rng(1)
    return jnp.stack([jnp.asarray(int8_linear.pack(levels)) for levels in made_levels(rng)])


def made_levels(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-127, 128, (EXPERTS, OUTPUTS, INPUTS)).astype(np.int8)


@pytest.fixture(scope="module")
def scales() -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).uniform(1e-3, 1e-2, (EXPERTS, OUTPUTS)), jnp.float32)


def choices(*, rows: int, each: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng((seed, rows, each))
    return np.stack([rng.permutation(EXPERTS)[:each] for _ in range(rows)]).astype(np.int32)


def vectors(*, rows: int, of_each: int, seed: int, inputs: int = INPUTS) -> np.ndarray:
    rng = np.random.default_rng((seed, rows, of_each, inputs))
    return (rng.normal(size=(rows, of_each, inputs)) * rng.exponential(size=(rows, 1, 1))).astype(np.float32)


@given(
    rows=st.integers(1, 40),
    each=st.integers(1, EXPERTS),
    own=st.booleans(),
    spare=st.integers(0, 5),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_every_product_is_the_one_with_its_expert_alone(
    rows: int, each: int, own: bool, spare: int, seed: int, weights: jax.Array, scales: jax.Array
) -> None:
    chosen = choices(rows=rows, each=each, seed=seed)
    x = vectors(rows=rows, of_each=each if own else 1, seed=seed)
    live = max(1, rows - spare)
    found = np.asarray(_experts(x, chosen, weights, scales, jnp.int32(live), ""))

    for row, choice in np.ndindex(live, each):
        expert = chosen[row, choice]
        alone = _one(x[row, choice if own else 0][None], weights[expert], scales[expert], jnp.int32(1))
        np.testing.assert_array_equal(found[row, choice].view(np.int32), np.asarray(alone)[0].view(np.int32))


@pytest.mark.parametrize("expert", [0, EXPERTS - 1])
def test_all_rows_may_go_to_one(expert: int, weights: jax.Array, scales: jax.Array) -> None:
    x = vectors(rows=128, of_each=1, seed=4)
    chosen = np.full((128, 1), expert, np.int32)
    found = np.asarray(_experts(x, chosen, weights, scales, jnp.int32(128), ""))[:, 0]
    alone = np.asarray(_one(x[:, 0], weights[expert], scales[expert], jnp.int32(128)))

    np.testing.assert_array_equal(found.view(np.int32), alone.view(np.int32))


def opened(gates: np.ndarray, *, activation: str) -> np.ndarray:
    if activation == "silu":
        return np.asarray(gates / (1.0 + np.exp(-gates)))
    return np.asarray(0.5 * gates * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gates + 0.044715 * gates**3))))


@pytest.mark.parametrize("activation", ["silu", "gelu-tanh"])
def test_a_gate_is_opened_before_the_product(activation: str, weights: jax.Array, scales: jax.Array) -> None:
    """Compared after the product: a gate that is off by one step of int8 would show."""
    chosen = choices(rows=9, each=3, seed=5)
    both = 4.0 * vectors(rows=9, of_each=3, seed=5, inputs=2 * INPUTS)
    both[0, 0, :6] = [0.0, -0.0, 20.0, -20.0, 200.0, -200.0]
    exact = both.astype(np.float64)
    x = (opened(exact[..., :INPUTS], activation=activation) * exact[..., INPUTS:]).astype(np.float32)
    found = _experts(both, chosen, weights, scales, jnp.int32(9), activation)
    wanted = np.asarray(_experts(x, chosen, weights, scales, jnp.int32(9), ""))

    # A value half-way between two steps may round either way.
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=2e-3 * float(np.abs(wanted).max()))
    assert np.mean(np.abs(np.asarray(found) - wanted)) < 1e-4 * np.mean(np.abs(wanted))


@pytest.mark.parametrize("activation", ["", "silu", "gelu-tanh"])
def test_what_is_no_number_stays_in_its_row(activation: str, weights: jax.Array, scales: jax.Array) -> None:
    chosen = choices(rows=9, each=2, seed=6)
    x = vectors(rows=9, of_each=2, seed=6, inputs=2 * INPUTS if activation else INPUTS)
    clean = np.asarray(_experts(x, chosen, weights, scales, jnp.int32(9), activation))
    x[4, 1, 40] = np.nan
    found = np.array(_experts(x, chosen, weights, scales, jnp.int32(9), activation))

    assert np.isnan(found[4, 1]).all()
    found[4, 1] = clean[4, 1]
    np.testing.assert_array_equal(found, clean)


def test_no_live_rows_are_no_work(weights: jax.Array, scales: jax.Array) -> None:
    chosen = np.full((8, 2), 10_000, np.int32)

    assert _experts(vectors(rows=8, of_each=1, seed=7), chosen, weights, scales, jnp.int32(0), "").shape == (8, 2, 37)


@pytest.mark.parametrize("expert", [-1, EXPERTS])
def test_an_expert_that_is_not_there_is_refused(expert: int, weights: jax.Array, scales: jax.Array) -> None:
    chosen = np.full((8, 2), expert, np.int32)
    with pytest.raises(Exception, match="an expert that there is none of"):
        _experts(vectors(rows=8, of_each=1, seed=8), chosen, weights, scales, jnp.int32(8), "").block_until_ready()


@pytest.mark.parametrize(("inputs", "activation"), [(INPUTS + 40, ""), (INPUTS, "silu"), (2 * INPUTS, "")])
def test_rows_of_another_width_are_refused(inputs: int, activation: str, weights: jax.Array, scales: jax.Array) -> None:
    x = vectors(rows=8, of_each=1, seed=9, inputs=inputs)
    with pytest.raises(Exception, match="do not belong together"):
        _experts(x, choices(rows=8, each=2, seed=9), weights, scales, jnp.int32(8), activation).block_until_ready()


def test_an_unknown_activation_is_refused(weights: jax.Array, scales: jax.Array) -> None:
    x = vectors(rows=8, of_each=1, seed=9, inputs=2 * INPUTS)
    with pytest.raises(Exception, match="must be silu, gelu-tanh or none"):
        _experts(x, choices(rows=8, each=2, seed=9), weights, scales, jnp.int32(8), "relu").block_until_ready()
