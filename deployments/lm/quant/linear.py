"""Matrix products of activations with weights kept as int8, bf16 or f32, all in `[out, in]` order.

A product's value for one row must not depend on how many rows there are; int8 products are exact in int32, so they
cannot. XLA's fast CPU path needs this order and at least two rows; it does not fuse de-quantisation into a product,
so activations are quantised instead.
"""

from enum import StrEnum
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int8

_LEVELS = 127.0
_RESIDUAL_STEPS = 254.0
_SMALLEST = 1e-9


class Precision(StrEnum):
    """How weights and their products are kept.

    `INT8` quantises each activation twice, value and residual: close to f32. `INT8_PLAIN` quantises it once: faster,
    and costs several percent of perplexity on small models.
    """

    INT8 = "int8"
    INT8_PLAIN = "int8-plain"
    BF16 = "bf16"
    F32 = "f32"

    @property
    def cache_dtype(self) -> jnp.dtype:
        """What keys and values are stored as."""
        return jnp.dtype(jnp.float32) if self is Precision.F32 else jnp.dtype(jnp.bfloat16)

    @property
    def embedding_dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32) if self is Precision.F32 else jnp.dtype(jnp.bfloat16)


class Linear(Protocol):
    """`y = x W^T`, rows independent of each other."""

    def __call__(self, x: Float[Array, "rows inputs"], /) -> Float32[Array, "rows outputs"]: ...


class FloatLinear(nnx.Module):
    """Weights as they are, sums in f32."""

    def __init__(self, weight: Float[Array, "outputs inputs"]) -> None:
        self.weight = nnx.Param(weight)

    def __call__(self, x: Float[Array, "rows inputs"], /) -> Float32[Array, "rows outputs"]:
        weight = self.weight[...]
        return _contract(x.astype(weight.dtype), weight, jnp.float32)


class Int8Linear(nnx.Module):
    """Per-channel int8 weights, per-row int8 activations of one or two terms, int32 sums.

    With two terms an activation is `step * (a + b / 254)`, `a` and `b` int8: the second holds what rounding lost.
    """

    def __init__(self, weight: Int8[Array, "outputs inputs"], *, scale: Float32[Array, " outputs"], terms: int) -> None:
        self.weight = nnx.Param(weight)
        self.scale = nnx.Param(scale)
        self.terms = terms

    def __call__(self, x: Float[Array, "rows inputs"], /) -> Float32[Array, "rows outputs"]:
        step = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / _LEVELS + _SMALLEST
        scaled = x / step
        whole = jnp.round(scaled)
        if self.terms == 1:
            return self._product(whole) * step * self.scale[...]
        rest = jnp.round((scaled - whole) * _RESIDUAL_STEPS)
        both = self._product(jnp.concatenate([whole, rest]))
        rows = x.shape[0]
        return (both[:rows] + both[rows:] * (1.0 / _RESIDUAL_STEPS)) * step * self.scale[...]

    def _product(self, levels: Float[Array, "rows inputs"]) -> Float32[Array, "rows outputs"]:
        return _contract(levels.astype(jnp.int8), self.weight[...], jnp.int32).astype(jnp.float32)


def build_linear(weight: Float32[np.ndarray, "outputs inputs"], *, precision: Precision) -> FloatLinear | Int8Linear:
    """The linear layer for `weight`; the only place that looks at `precision`."""
    match precision:
        case Precision.F32:
            return FloatLinear(jnp.asarray(weight))
        case Precision.BF16:
            return FloatLinear(jnp.asarray(weight, jnp.bfloat16))
        case Precision.INT8 | Precision.INT8_PLAIN:
            scale = np.maximum(np.abs(weight).max(axis=1), _SMALLEST) / np.float32(_LEVELS)
            levels = np.round(weight / scale[:, None]).astype(np.int8)
            terms = 2 if precision is Precision.INT8 else 1
            return Int8Linear(jnp.asarray(levels), scale=jnp.asarray(scale, jnp.float32), terms=terms)


def _contract(x: Array, weight: Array, sums: DTypeLike) -> Array:
    return jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST, preferred_element_type=sums
    )
