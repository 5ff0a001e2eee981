"""A layer of experts with a shared one: its formula, and the same bits in a window of any size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from deployments.lm.experts import Experts
from deployments.lm.layers import Activation, GatedFeedForward
from deployments.lm.mixture import Mixture, SharedExpert
from deployments.lm.quant.linear import Precision, build_linear
from deployments.lm.quant.stacked import build_stacked
from deployments.lm.routing import Routing

WIDTH, INNER, SHARED, EXPERTS, PER_TOKEN = 32, 24, 40, 6, 2
RNG = np.random.default_rng(5)


def weights(*shape: int) -> np.ndarray:
    drawn: np.ndarray = RNG.normal(size=shape) / np.sqrt(shape[-1])
    return drawn.astype(np.float32)


ROUTER, GATE = weights(EXPERTS, WIDTH), weights(WIDTH)
GATE_UP, DOWN = weights(EXPERTS, 2 * INNER, WIDTH), weights(EXPERTS, WIDTH, INNER)
SHARED_GATE_UP, SHARED_DOWN = weights(2 * SHARED, WIDTH), weights(WIDTH, SHARED)
ROWS = RNG.normal(size=(1024, WIDTH)).astype(np.float32)


def mixture(*, has_shared: bool) -> Mixture:
    def linear(weight: np.ndarray) -> nnx.Module:
        return build_linear(weight, precision=Precision.F32)

    shared = SharedExpert(
        feed_forward=GatedFeedForward(gate_up=linear(SHARED_GATE_UP), down=linear(SHARED_DOWN)), gate=jnp.asarray(GATE)
    )
    return Mixture(
        router=linear(ROUTER),
        routing=Routing(per_token=PER_TOKEN, normalised=False),
        experts=Experts(
            gate_up=build_stacked(lambda n: GATE_UP[n], experts=EXPERTS, precision=Precision.F32),
            down=build_stacked(lambda n: DOWN[n], experts=EXPERTS, precision=Precision.F32),
            activation=Activation.SILU,
        ),
        shared=shared if has_shared else None,
    )


def feed_forward(x: np.ndarray, gate_up: np.ndarray, down: np.ndarray) -> np.ndarray:
    gate, up = np.split(gate_up.astype(np.float64) @ x, 2)
    out: np.ndarray = down @ (gate / (1 + np.exp(-gate)) * up)
    return out


@pytest.mark.parametrize("has_shared", [True, False])
def test_it_is_the_weighted_sum_of_experts(has_shared: bool) -> None:
    rows = ROWS[:16]
    found = mixture(has_shared=has_shared)(jnp.asarray(rows), live=jnp.int32(16))
    for row, got in zip(rows.astype(np.float64), np.asarray(found), strict=True):
        logits = ROUTER @ row
        shares = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(-shares)[:PER_TOKEN]
        wanted = sum(shares[n] * feed_forward(row, GATE_UP[n], DOWN[n]) for n in best)
        if has_shared:
            wanted = wanted + feed_forward(row, SHARED_GATE_UP, SHARED_DOWN) / (1 + np.exp(-GATE @ row))
        np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_rows_have_the_same_bits_in_any_window() -> None:
    graph, state = nnx.split(mixture(has_shared=True))

    @jax.jit
    def run(state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(x, live=jnp.int32(x.shape[0]))

    def in_windows(rows: int) -> np.ndarray:
        return np.concatenate([np.asarray(run(state, ROWS[i : i + rows])) for i in range(0, len(ROWS), rows)])

    narrow = in_windows(8)
    for rows in (16, 32, 128):
        np.testing.assert_array_equal(in_windows(rows).view(np.int32), narrow.view(np.int32))
