"""Which experts rows go to: the best, with their shares, and with the same bits in a window of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.routing import Routing, route

ROWS, RUNGS = 128, (8, 16, 32, 64, 128)
LOGITS = np.random.default_rng(8).normal(scale=3.0, size=(ROWS, 64)).astype(np.float32)


def bits(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(np.uint32)


@pytest.mark.parametrize("normalised", [True, False])
def test_routes_are_the_best_and_their_shares(normalised: bool) -> None:
    chosen, weights = route(jnp.asarray(LOGITS), routing=Routing(per_token=8, normalised=normalised))
    shares = np.exp(LOGITS.astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    best = np.argsort(-shares, axis=1)[:, :8]
    wanted = np.take_along_axis(shares, best, axis=1)

    np.testing.assert_array_equal(chosen, best)
    np.testing.assert_allclose(weights, wanted / wanted.sum(axis=1, keepdims=True) if normalised else wanted, rtol=2e-6)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("experts", [4, 12, 64])
def test_a_route_has_the_same_bits_in_any_window(normalised: bool, experts: int) -> None:
    routing = Routing(per_token=4, normalised=normalised)
    routed = jax.jit(lambda logits: route(logits, routing=routing))
    whole = routed(LOGITS[:, :experts])
    rng = np.random.default_rng(9)
    for rung in RUNGS:
        taken = rng.permutation(ROWS)[:rung]
        found = routed(LOGITS[taken, :experts])
        np.testing.assert_array_equal(found.chosen, np.asarray(whole.chosen)[taken])
        np.testing.assert_array_equal(bits(found.weights), bits(whole.weights)[taken])


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("experts", "per_token"), [(6, 2), (8, 3), (60, 4)])
def test_odd_counts_have_the_same_bits_in_any_window(normalised: bool, experts: int, per_token: int) -> None:
    """Rare: one row in several hundred is rounded otherwise where loops are free to differ."""
    logits = np.random.default_rng(7).normal(size=(4096, experts)).astype(np.float32)
    routed = jax.jit(lambda part: route(part, routing=Routing(per_token=per_token, normalised=normalised)).weights)

    def in_windows(rows: int) -> np.ndarray:
        return np.concatenate([bits(routed(logits[i : i + rows])) for i in range(0, len(logits), rows)])

    narrow = in_windows(8)
    for rung in RUNGS[1:]:
        np.testing.assert_array_equal(in_windows(rung), narrow)


def test_of_equals_the_lower_number_goes_first() -> None:
    logits = np.zeros((8, 64), np.float32)
    logits[:, 40:] = 1.0
    logits[3] = -7.0
    chosen = np.asarray(route(jnp.asarray(logits), routing=Routing(per_token=5, normalised=True)).chosen)

    np.testing.assert_array_equal(chosen[0], [40, 41, 42, 43, 44])
    np.testing.assert_array_equal(chosen[3], [0, 1, 2, 3, 4])


def test_a_model_may_scale_its_experts() -> None:
    scales = np.linspace(0.5, 2.0, 64).astype(np.float32)
    routing = Routing(per_token=3, normalised=True)
    plain, scaled = (route(jnp.asarray(LOGITS), routing=routing, scales=given) for given in (None, jnp.asarray(scales)))

    np.testing.assert_array_equal(plain.chosen, scaled.chosen)
    np.testing.assert_allclose(scaled.weights, np.asarray(plain.weights) * scales[np.asarray(plain.chosen)], rtol=1e-6)


def test_logits_of_any_size_give_weights_that_add_up() -> None:
    logits = np.full((8, 64), -3e38, np.float32)
    logits[0, :3] = [3e38, 1.0, 0.0]
    weights = np.asarray(route(jnp.asarray(logits), routing=Routing(per_token=8, normalised=True)).weights)

    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)
    assert weights[0, 0] == 1.0
