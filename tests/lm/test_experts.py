"""Mixtures of experts against numpy, the independence of their rows bit by bit, and what they cost."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from deployments.lm.experts import Experts
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
from deployments.lm.layers import Activation
from deployments.lm.quant.linear import Precision
from deployments.lm.quant.stacked import build_stacked

EXPERTS, WIDTH, OWN = 12, 96, 40
ROWS, RUNGS = 128, (8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to keep weights, and how far its results may lie from what those would give, as a share of their size."""

    precision: Precision
    kernels: Kernels = Kernels.XLA
    tolerance: float

    def __str__(self) -> str:
        return f"{self.precision}-{self.kernels}"


KINDS = (
    Kind(precision=Precision.F32, tolerance=2e-6),
    Kind(precision=Precision.BF16, tolerance=1e-2),
    Kind(precision=Precision.INT8, tolerance=4e-4),
    Kind(precision=Precision.INT8_PLAIN, tolerance=8e-2),
    Kind(precision=Precision.INT8, kernels=Kernels.NATIVE, tolerance=5e-2),
)


class Weights:
    """Random experts of unlike size, in f32."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        size = 10.0 ** rng.uniform(-0.5, 0.5, size=(EXPERTS, 1, 1))
        self.gate_up = (size * rng.normal(size=(EXPERTS, 2 * OWN, WIDTH)) * WIDTH**-0.5).astype(np.float32)
        self.down = (rng.normal(size=(EXPERTS, WIDTH, OWN)) * OWN**-0.5).astype(np.float32)

    def built(self, kind: Kind, *, activation: Activation = Activation.SILU) -> Experts:
        gate_up, down = (
            build_stacked(
                weights.__getitem__,
                experts=EXPERTS,
                precision=kind.precision,
                kernels=kind.kernels,
            )
            for weights in (self.gate_up, self.down)
        )
        return Experts(gate_up=gate_up, down=down, activation=activation)

    def exact(self, x: np.ndarray, *, choice: "Choice", activation: Activation, kind: Kind) -> np.ndarray:
        """In float64 with the weights as they are kept, one row and one expert at a time."""
        gates, downs = (kept(weights, precision=kind.precision) for weights in (self.gate_up, self.down))
        result = np.zeros(x.shape)
        for row, place in np.ndindex(choice.chosen.shape):
            expert = choice.chosen[row, place]
            gate, up = np.split(gates[expert] @ x[row].astype(np.float64), 2)
            hidden = opened(gate, activation=activation) * up
            result[row] += float(choice.weights[row, place]) * (downs[expert] @ hidden)
        return result


def kept(weights: np.ndarray, *, precision: Precision) -> np.ndarray:
    if precision is Precision.BF16:
        weights = np.asarray(jnp.asarray(weights, jnp.bfloat16).astype(jnp.float32))
    if precision in (Precision.F32, Precision.BF16):
        return weights.astype(np.float64)
    steps = np.abs(weights).max(axis=-1, keepdims=True) / np.float32(127.0)
    return np.asarray(np.round(weights / steps).astype(np.float64) * steps)


def opened(gate: np.ndarray, *, activation: Activation) -> np.ndarray:
    if activation is Activation.SILU:
        return np.asarray(gate / (1.0 + np.exp(-gate)))
    return np.asarray(0.5 * gate * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3))))


@dataclass(frozen=True, kw_only=True)
class Choice:
    chosen: np.ndarray
    weights: np.ndarray

    def of(self, rows: np.ndarray) -> "Choice":
        return Choice(chosen=self.chosen[rows], weights=self.weights[rows])


def at_random(*, each: int) -> Choice:
    rng = np.random.default_rng((3, each))
    # A few experts are wanted by nearly everybody, as real ones are.
    liking = rng.gumbel(size=(ROWS, EXPERTS)) + 3.0 * (np.arange(EXPERTS) < 2)
    weights = rng.dirichlet(np.ones(each), size=ROWS).astype(np.float32)
    return Choice(chosen=np.argsort(-liking, axis=1)[:, :each].astype(np.int32), weights=weights)


def in_turn(*, step: int) -> Choice:
    """Four experts, all rows the same, or each others than its neighbours."""
    first = step * np.arange(ROWS, dtype=np.int32)[:, None] + np.asarray([7, 3, 8, 0], np.int32)
    return Choice(chosen=first % EXPERTS, weights=np.full((ROWS, 4), 0.25, np.float32))


CHOICES: dict[str, Choice] = {
    "at random": at_random(each=4),
    "all rows to the same": in_turn(step=0),
    "each row to the next": in_turn(step=1),
    "every row to all": at_random(each=EXPERTS),
}


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights()


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    if kind.kernels is Kernels.NATIVE:
        chosen, reason = choose_kernels(Kernels.AUTO, cache=Path.home() / ".cache" / "outrider" / "kernels")
        if chosen is not Kernels.NATIVE:
            pytest.skip(f"no native kernels here: {reason}")
    return kind


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Rows of very different size, with outliers as real activations have them."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, WIDTH)) * 10.0 ** rng.uniform(-1, 1, size=(ROWS, 1))
    x[:, 5] *= 10.0
    return x.astype(np.float32)


type Run = Callable[..., np.ndarray]


def runner(experts: Experts) -> Run:
    """Calls the layer as a served program does: its weights are arguments."""
    kind, state = nnx.split(experts)
    compiled = jax.jit(
        lambda state, x, chosen, weights, live: nnx.merge(kind, state)(x, chosen=chosen, weights=weights, live=live)
    )

    def run(x: np.ndarray, *, choice: Choice, live: int | None = None) -> np.ndarray:
        count = jnp.int32(len(x) if live is None else live)
        return np.asarray(compiled(state, x, choice.chosen, choice.weights, count))

    return run


@pytest.fixture(scope="module")
def run(kind: Kind, weights: Weights) -> Run:
    return runner(weights.built(kind))


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


@pytest.mark.parametrize("name", CHOICES)
def test_a_row_is_the_weighted_sum_of_its_experts(
    name: str, kind: Kind, run: Run, rows: np.ndarray, weights: Weights
) -> None:
    exact = weights.exact(rows, choice=CHOICES[name], activation=Activation.SILU, kind=kind)
    lost = np.linalg.norm(run(rows, choice=CHOICES[name]) - exact, axis=1) / np.linalg.norm(exact, axis=1)

    assert lost.max() < kind.tolerance


def test_the_gate_may_be_a_gelu(kind: Kind, rows: np.ndarray, weights: Weights) -> None:
    choice = CHOICES["at random"]
    exact = weights.exact(rows, choice=choice, activation=Activation.GELU, kind=kind)
    found = runner(weights.built(kind, activation=Activation.GELU))(rows, choice=choice)

    assert (np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)).max() < kind.tolerance


@pytest.mark.parametrize("name", CHOICES)
def test_a_row_has_the_same_bits_in_any_window(name: str, run: Run, rows: np.ndarray) -> None:
    """Any rung, any place, any neighbours, of which there may be fewer than the rung has room for."""
    whole = bits(run(rows, choice=CHOICES[name]))
    rng = np.random.default_rng(6)
    # Another number of experts per row is another program on every rung; the two furthest apart must do.
    for rung in RUNGS[::4] if name == "every row to all" else RUNGS:
        for _ in range(3):
            taken = rng.permutation(ROWS)[:rung]
            live = int(rng.integers(1, rung + 1))
            found = run(rows[taken], choice=CHOICES[name].of(taken), live=live)
            np.testing.assert_array_equal(bits(found[:live]), whole[taken[:live]])
            assert not found[live:].any()


def test_a_row_does_not_see_where_its_neighbours_go(run: Run, rows: np.ndarray) -> None:
    choice = CHOICES["at random"]
    alone = bits(run(rows[:8], choice=choice.of(np.arange(8)), live=1))[0]
    rng = np.random.default_rng(7)
    for rung in RUNGS:
        chosen = np.argsort(rng.random((rung, EXPERTS)), axis=1)[:, :4].astype(np.int32)
        chosen[0] = choice.chosen[0]
        others = Choice(chosen=chosen, weights=rng.normal(size=(rung, 4)).astype(np.float32))
        others.weights[0] = choice.weights[0]
        x = (1e3 * rng.normal(size=(rung, WIDTH))).astype(np.float32)
        x[0] = rows[0]
        np.testing.assert_array_equal(bits(run(x, choice=others))[0], alone)


def test_a_row_that_is_no_number_stays_alone(run: Run, rows: np.ndarray) -> None:
    choice = CHOICES["at random"]
    clean = run(rows, choice=choice)
    broken = rows.copy()
    broken[40] = np.nan
    found = run(broken, choice=choice)

    assert np.isnan(found[40]).all()
    np.testing.assert_array_equal(bits(np.delete(found, 40, axis=0)), bits(np.delete(clean, 40, axis=0)))


def test_rows_past_the_live_ones_may_be_anything(run: Run, rows: np.ndarray) -> None:
    choice = CHOICES["at random"].of(np.arange(16))
    strange = rows[:16].copy()
    strange[5:] = np.inf
    choice.chosen[5:] = 0
    found = run(strange, choice=choice, live=5)

    np.testing.assert_array_equal(bits(found[:5]), bits(run(rows[:16], choice=choice, live=5))[:5])
    assert not found[5:].any()
    assert not run(strange, choice=choice, live=0).any()


def test_no_expert_but_the_one_at_work_is_copied(kind: Kind, weights: Weights) -> None:
    """A product with the whole stack, or a copy of it, would need its size again."""
    definition, state = nnx.split(weights.built(kind))
    compiled = jax.jit(
        lambda state, x, chosen, weights: nnx.merge(definition, state)(x, chosen=chosen, weights=weights)
    )
    arguments = (jnp.ones((8, WIDTH)), jnp.zeros((8, 1), jnp.int32), jnp.ones((8, 1)))
    needed = compiled.lower(state, *arguments).compile().memory_analysis()
    assert needed is not None
    stack = sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    assert needed.temp_size_in_bytes < 2 * stack / EXPERTS + 40 * 8 * WIDTH * 4
