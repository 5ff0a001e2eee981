"""What a layer of experts costs by how many are used: `python -m tests.bench.experts [ROUNDS] [EXPERTS] [WIDTH] [OWN]`.

One window of eight rows against one dense layer of an expert's size, and against `jax.lax.ragged_dot`, which reads
every expert. The cost should follow the experts used.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table

from deployments.lm.experts import Experts
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
from deployments.lm.layers import Activation
from deployments.lm.quant.linear import Precision, build_linear
from deployments.lm.quant.stacked import build_stacked
from serve_app.benchmark.alternation import Arm, Effort, Spread, alternate, spread, timed
from serve_app.config import VerifierConfig

ROWS = 8
DENSE, RAGGED = "one dense layer", "ragged_dot, 1 used"
KINDS = (
    (Precision.F32, Kernels.XLA),
    (Precision.BF16, Kernels.XLA),
    (Precision.INT8, Kernels.XLA),
    (Precision.INT8_PLAIN, Kernels.XLA),
    (Precision.INT8, Kernels.NATIVE),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    experts: int
    width: int
    own: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """Eight rows, how many experts each goes to, and how many of all are used."""

    each: int
    used: int
    live: int = ROWS

    def __str__(self) -> str:
        return f"{self.used} used, {self.each} a row{'' if self.live == ROWS else f', {self.live} live'}"

    def chosen(self, size: Size) -> jax.Array:
        """Experts in turn, far apart in the stack."""
        numbers = np.arange(ROWS * self.each, dtype=np.int32) % self.used * (size.experts // self.used)
        return jnp.asarray(numbers.reshape(ROWS, self.each))


CASES = (Case(each=1, used=1), Case(each=1, used=8), Case(each=8, used=8, live=1), Case(each=8, used=64))


class Weights:
    """Random experts, made anew each time they are asked for."""

    def __init__(self, size: Size) -> None:
        self.size = size

    def gate_up(self, expert: int) -> np.ndarray:
        return self._drawn(expert, outputs=2 * self.size.own, inputs=self.size.width)

    def down(self, expert: int) -> np.ndarray:
        return self._drawn(expert, outputs=self.size.width, inputs=self.size.own)

    @staticmethod
    def _drawn(expert: int, *, outputs: int, inputs: int) -> np.ndarray:
        drawn = np.random.default_rng((expert, outputs)).standard_normal((outputs, inputs), np.float32)
        return drawn * np.float32(inputs**-0.5)


def layers(weights: Weights, *, precision: Precision, kernels: Kernels) -> Experts:
    gate_up, down = (
        build_stacked(read, experts=weights.size.experts, precision=precision, kernels=kernels)
        for read in (weights.gate_up, weights.down)
    )
    return Experts(gate_up=gate_up, down=down, activation=Activation.SILU)


def arm(compiled: Callable[..., Any], *arguments: Any) -> Arm[float]:
    return lambda _: timed(lambda: jax.block_until_ready(compiled(*arguments)))


def expert_arms(experts: Experts, *, x: jax.Array, size: Size) -> dict[str, Arm[float]]:
    kind, state = nnx.split(experts)
    compiled = jax.jit(
        lambda state, x, chosen, weights, live: nnx.merge(kind, state)(x, chosen=chosen, weights=weights, live=live)
    )
    return {
        str(case): arm(compiled, state, x, case.chosen(size), jnp.ones((ROWS, case.each)), jnp.int32(case.live))
        for case in CASES
    }


def dense_arm(weights: Weights, *, x: jax.Array, precision: Precision, kernels: Kernels) -> Arm[float]:
    """One expert's layer, as any dense feed-forward."""
    pair = nnx.List(
        [build_linear(of(0), precision=precision, kernels=kernels) for of in (weights.gate_up, weights.down)]
    )
    kind, state = nnx.split(pair)

    def dense(state: Any, x: jax.Array) -> jax.Array:
        gate_up, down = nnx.merge(kind, state)
        gate, up = jnp.split(gate_up(x), 2, axis=-1)
        result: jax.Array = down(jax.nn.silu(gate) * up)
        return result

    return arm(jax.jit(dense), state, x)


def ragged_arm(weights: Weights, *, x: jax.Array, precision: Precision) -> Arm[float]:
    """All rows to one expert, by XLA's own product of ragged groups."""
    dtype = jnp.float32 if precision is Precision.F32 else jnp.bfloat16
    stacks = [
        jnp.stack([jnp.asarray(of(expert).T, dtype) for expert in range(weights.size.experts)])
        for of in (weights.gate_up, weights.down)
    ]
    counts = jnp.zeros(weights.size.experts, jnp.int32).at[0].set(ROWS)

    def ragged(x: jax.Array, gate_up: jax.Array, down: jax.Array, counts: jax.Array) -> jax.Array:
        gate, up = jnp.split(jax.lax.ragged_dot(x.astype(dtype), gate_up, counts), 2, axis=-1)
        return jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, counts)

    return arm(jax.jit(ragged), x, *stacks, counts)


def measure(size: Size, *, precision: Precision, kernels: Kernels, rounds: int) -> dict[str, Spread]:
    """Seconds of every case, in one alternating run."""
    weights, x = Weights(size), jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, size.width), np.float32))
    arms = expert_arms(layers(weights, precision=precision, kernels=kernels), x=x, size=size)
    arms[DENSE] = dense_arm(weights, x=x, precision=precision, kernels=kernels)
    if precision in (Precision.F32, Precision.BF16):
        arms[RAGGED] = ragged_arm(weights, x=x, precision=precision)
    times = alternate(arms, effort=Effort(rounds=rounds, warm_ups=2))
    return {name: spread(values) for name, values in times.items()}


def worded(found: dict[str, Spread], *, case: str) -> str:
    if case not in found:
        return ""
    return f"{1e3 * found[case].median:.2f} [dim]{1e3 * found[case].least:.2f}[/]"


def main(rounds: str = "15", experts: str = "64", width: str = "1024", own: str = "512") -> None:
    """Prints one line per case and one column per precision."""
    size = Size(experts=int(experts), width=int(width), own=int(own))
    native, reason = choose_kernels(Kernels.AUTO, cache=Path(VerifierConfig().compile_cache) / "kernels")
    if native is not Kernels.NATIVE:
        Console().print(f"no native kernels here: {reason}")
    kinds = [kind for kind in KINDS if kind[1] in (Kernels.XLA, native)]
    found = [measure(size, precision=each, kernels=kernels, rounds=int(rounds)) for each, kernels in kinds]
    names = [f"{precision}, {kernels}" for precision, kernels in kinds]
    table = Table("", *names, title=f"ms, median and least; {size.experts} experts, {size.width} x {size.own}")
    for case in (*map(str, CASES), DENSE, RAGGED):
        table.add_row(case, *(worded(each, case=case) for each in found))
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
