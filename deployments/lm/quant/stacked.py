"""Linear layers of one shape kept as one: the weights of all experts of a layer. Knows no routing.

Each expert is an ordinary linear layer with its own scales, so its products are those of `quant.linear`, bit by bit.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float32, Int32

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Linear, NativeInt8Linear, Precision, build_linear, zero_linear


class StackedLinear(nnx.Module):
    """`experts` linear layers in one: every weight has an axis more, the first."""

    def __init__(self, together: nnx.Module, *, experts: int) -> None:
        self.together = together
        self.experts = experts

    def expert(self, number: Int32[Array, ""], /) -> Linear:
        """One of them, cut out of the stack: a copy of its weights and of no others."""
        kind, weights = nnx.split(self.together)
        one: Linear = nnx.merge(kind, jax.tree.map(lambda stack: stack[number], weights))
        return one

    @property
    def native(self) -> NativeInt8Linear | None:
        """All of them as the native kernel addresses them in place; `None` where they are XLA's."""
        return self.together if isinstance(self.together, NativeInt8Linear) else None


def build_stacked(
    read: Callable[[int], Float32[np.ndarray, "outputs inputs"]],
    /,
    *,
    experts: int,
    precision: Precision,
    kernels: Kernels = Kernels.XLA,
) -> StackedLinear:
    """The linear layers whose weights `read` gives, one expert at a time: never are two of them held in f32."""
    kind, stacks = None, None
    for number in range(experts):
        kind, weights = nnx.split(build_linear(read(number), precision=precision, kernels=kernels))
        if stacks is None:
            stacks = _stacks(weights, experts=experts)
        stacks = _placed(stacks, weights, number)
    if kind is None:
        raise ValueError("a stack needs at least one expert")
    return StackedLinear(nnx.merge(kind, stacks), experts=experts)


def zero_stacked(
    *, outputs: int, inputs: int, experts: int, precision: Precision, kernels: Kernels = Kernels.XLA
) -> StackedLinear:
    """What `build_stacked` makes of weights of this shape, all of them zero: see `zero_linear`."""
    one = zero_linear(outputs=outputs, inputs=inputs, precision=precision, kernels=kernels)
    kind, weights = nnx.split(one)
    return StackedLinear(nnx.merge(kind, _stacks(weights, experts=experts)), experts=experts)


def _stacks[Weights](weights: Weights, *, experts: int) -> Weights:
    return cast("Weights", jax.tree.map(lambda one: jnp.zeros((experts, *one.shape), one.dtype), weights))


@partial(jax.jit, donate_argnums=0)
def _placed[Weights](stacks: Weights, weights: Weights, number: ArrayLike) -> Weights:
    return cast("Weights", jax.tree.map(lambda stack, one: stack.at[number].set(one), stacks, weights))
