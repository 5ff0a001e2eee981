"""Matrix products of activations with weights kept as int8, bf16 or f32.

A product's value for one row must not depend on how many rows there are; int8 products are exact in int32, so they
cannot. XLA's fast CPU path needs `[out, in]` order and at least two rows; it does not fuse de-quantisation into a
product, so activations are quantised instead.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int8, Int32, UInt8

from deployments.lm.kernels import int8_linear
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import greatest, total
from deployments.lm.sums import rounded

_LEVELS = 127.0
_RESIDUAL_STEPS = 254.0
_SMALLEST = 1e-9
_ROWS_AT_ONCE = 1024


class Precision(StrEnum):
    """How weights and their products are kept.

    `INT8` keeps activations close to f32: quantised twice, value and residual, or in native kernels once in groups
    of 32. `INT8_PLAIN` quantises a whole row once: it costs several percent of perplexity on small models. `W8A16`
    rounds activations to bf16 and multiplies int8 weights by them: on a TPU, which reads as many bytes; a processor
    writes all weights out as bf16 in every window.
    """

    INT8 = "int8"
    INT8_PLAIN = "int8-plain"
    W8A16 = "w8a16"
    BF16 = "bf16"
    F32 = "f32"

    @property
    def has_int8_weights(self) -> bool:
        """Whether a matrix takes one byte per weight."""
        return self in (Precision.INT8, Precision.INT8_PLAIN, Precision.W8A16)

    @property
    def cache_dtype(self) -> jnp.dtype:
        """What keys and values are stored as."""
        return jnp.dtype(jnp.float32) if self is Precision.F32 else jnp.dtype(jnp.bfloat16)

    @property
    def embedding_dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32) if self is Precision.F32 else jnp.dtype(jnp.bfloat16)


class Linear(Protocol):
    """`y = x W^T`, rows independent of each other. Rows from `live` on may hold anything finite; `None` means all."""

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]: ...


class FloatLinear(nnx.Module):
    """Weights as they are, sums in f32.

    Attributes:
        axis: the devices that each have some of the inputs; `None` where this one has all.
    """

    def __init__(self, weight: Float[Array, "outputs inputs"]) -> None:
        self.weight = nnx.Param(weight)
        self.axis: str | None = None

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]:
        weight = self.weight[...]
        return total(_contract(x.astype(weight.dtype), weight, jnp.float32), axis=self.axis)


class Int8Linear(nnx.Module):
    """Per-channel int8 weights, per-row int8 activations of one or two terms, int32 sums.

    With two terms an activation is `step * (a + b / 254)`, `a` and `b` int8: the second holds what rounding lost.
    Over several devices the step is that of the whole row and sums stay integers, so no bit depends on how many.

    Attributes:
        axis: as in `FloatLinear`.
    """

    def __init__(self, weight: Int8[Array, "outputs inputs"], *, scale: Float32[Array, " outputs"], terms: int) -> None:
        self.weight = nnx.Param(weight)
        self.scale = nnx.Param(scale)
        self.terms = terms
        self.axis: str | None = None

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]:
        peak = greatest(jnp.max(jnp.abs(x), axis=-1, keepdims=True), axis=self.axis)
        step = jnp.maximum(peak, _SMALLEST) * (1.0 / _LEVELS)
        # XLA makes this of a quotient where it knows that the step is one per row, and else does not.
        scaled = x * (1.0 / step)
        whole = jnp.round(scaled)
        if self.terms == 1:
            return self._product(whole) * step * self.scale[...]
        rest = jnp.round((scaled - whole) * _RESIDUAL_STEPS)
        both = self._product(jnp.concatenate([whole, rest]))
        rows = x.shape[0]
        return (both[:rows] + rounded(both[rows:] * (1.0 / _RESIDUAL_STEPS))) * step * self.scale[...]

    def _product(self, levels: Float[Array, "rows inputs"]) -> Float32[Array, "rows outputs"]:
        own = _contract(levels.astype(jnp.int8), self.weight[...], jnp.int32)
        return total(own, axis=self.axis).astype(jnp.float32)


class Int8WeightLinear(Int8Linear):
    """Per-channel int8 weights, activations rounded to bf16, sums in f32. Levels are exact in bf16, so activations are
    all that is rounded. Over several devices, sums differ in their last bits."""

    def __init__(self, weight: Int8[Array, "outputs inputs"], *, scale: Float32[Array, " outputs"]) -> None:
        super().__init__(weight, scale=scale, terms=0)

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]:
        own = _contract(x.astype(jnp.bfloat16), self.weight[...].astype(jnp.bfloat16), jnp.float32)
        return total(own, axis=self.axis) * self.scale[...]


class NativeInt8Linear(nnx.Module):
    """Per-channel int8 weights and activations quantised in groups of 32, by a kernel that skips rows past `live`."""

    def __init__(self, weight: UInt8[Array, "blocks quads 64"], *, scale: Float32[Array, " outputs"]) -> None:
        self.weight = nnx.Param(weight)
        self.scale = nnx.Param(scale)

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]:
        rows = jnp.int32(x.shape[0]) if live is None else live
        return int8_linear.multiply(x.astype(jnp.float32), weights=self.weight[...], scales=self.scale[...], live=rows)


def build_linear(
    weight: Float32[np.ndarray, "outputs inputs"], *, precision: Precision, kernels: Kernels = Kernels.XLA
) -> FloatLinear | Int8Linear | NativeInt8Linear:
    """The linear layer for `weight`."""
    return join_linear((weight,), precision=precision, kernels=kernels)


def join_linear(
    parts: Iterable[Float32[np.ndarray, "_ inputs"]], *, precision: Precision, kernels: Kernels = Kernels.XLA
) -> FloatLinear | Int8Linear | NativeInt8Linear:
    """One linear layer for several weights, their outputs one below the other; the only place that looks at
    `precision`. Each part is taken from the iterable when the one before it has been converted and can be forgotten."""
    match precision:
        case Precision.F32:
            return FloatLinear(jnp.asarray(np.concatenate(list(parts))))
        case Precision.BF16:
            return FloatLinear(jnp.asarray(np.concatenate([part.astype(jnp.bfloat16) for part in parts])))
        case Precision.INT8 | Precision.INT8_PLAIN | Precision.W8A16:
            quantised = [quantise(part) for part in parts]
            levels = np.concatenate([part.levels for part in quantised])
            scale = jnp.asarray(np.concatenate([part.scale for part in quantised]))
            if kernels is Kernels.NATIVE and precision is Precision.INT8:
                return NativeInt8Linear(jnp.asarray(int8_linear.pack(levels)), scale=scale)
            return _int8_linear(jnp.asarray(levels), scale=scale, precision=precision)


def zero_linear(
    *, outputs: int, inputs: int, precision: Precision, kernels: Kernels = Kernels.XLA
) -> FloatLinear | Int8Linear | NativeInt8Linear:
    """What `join_linear` makes of weights of this shape, all of them zero: for whoever wants shapes, and traces it."""
    shape = (outputs, inputs)
    match precision:
        case Precision.F32 | Precision.BF16:
            return FloatLinear(jnp.zeros(shape, precision.embedding_dtype))
        case Precision.INT8 | Precision.INT8_PLAIN | Precision.W8A16:
            scale = jnp.zeros(outputs, jnp.float32)
            if kernels is Kernels.NATIVE and precision is Precision.INT8:
                return NativeInt8Linear(jnp.zeros(int8_linear.packed_shape(shape), jnp.uint8), scale=scale)
            return _int8_linear(jnp.zeros(shape, jnp.int8), scale=scale, precision=precision)


def _int8_linear(levels: Array, *, scale: Array, precision: Precision) -> Int8Linear:
    if precision is Precision.W8A16:
        return Int8WeightLinear(levels, scale=scale)
    return Int8Linear(levels, scale=scale, terms=2 if precision is Precision.INT8 else 1)


class Quantised(NamedTuple):
    """Per-channel int8: `weight = levels * scale`."""

    levels: Int8[np.ndarray, "outputs inputs"]
    scale: Float32[np.ndarray, " outputs"]


def quantise(weight: Float32[np.ndarray, "outputs inputs"], /) -> Quantised:
    """Rounds every output's weights to 255 levels. Takes little memory beside the weight."""
    scale = np.empty(len(weight), np.float32)
    levels = np.empty(weight.shape, np.int8)
    for first in range(0, len(weight), _ROWS_AT_ONCE):
        part = weight[first : first + _ROWS_AT_ONCE]
        steps = np.maximum(np.abs(part).max(axis=1), _SMALLEST) / np.float32(_LEVELS)
        scale[first : first + len(part)] = steps
        levels[first : first + len(part)] = np.round(part / steps[:, None])
    return Quantised(levels=levels, scale=scale)


def _contract(x: Array, weight: Array, sums: DTypeLike) -> Array:
    return jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST, preferred_element_type=sums
    )
