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
from jaxtyping import Array, Float, Float32, Int8, Int32, Num, UInt8

from deployments.lm.kernels import int8_linear
from deployments.lm.kernels.choice import Kernels
from deployments.lm.mesh import greatest, total

_LEVELS = 127
_SMALLEST = 1e-9
_ROWS_AT_ONCE = 1024
# What is below a step has to be an int8 as well.
_MOST_BITS = 8
_LARGEST_SUM = np.iinfo(np.int32).max


class Precision(StrEnum):
    """How weights and their products are kept.

    `INT8` keeps activations close to f32: with up to 8 bits more than an int8 has, or in native kernels in groups of
    32. `INT8_PLAIN` rounds a whole row to an int8: it costs several percent of perplexity on small models. `W8A16`
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
    """Per-channel int8 weights, per-row integer activations, int32 sums.

    A step is a row's largest activation divided by 127. Activations are whole numbers of steps, or of `2 ** -bits` of
    one; then two products are made, of the steps and of what is below one, and added in int32, which holds whatever
    activations of so many bits come to. Over several devices the step is that of the whole row, and what is added up
    are integers, one for each row and output: no bit depends on how many devices there are.

    Attributes:
        bits: `None` where activations are whole steps.
        axis: as in `FloatLinear`.
    """

    def __init__(
        self,
        weight: Int8[Array, "outputs inputs"],
        *,
        scale: Float32[Array, " outputs"],
        bits: Int32[Array, ""] | None = None,
    ) -> None:
        self.weight = nnx.Param(weight)
        self.scale = nnx.Param(scale)
        self.bits = nnx.data(None if bits is None else nnx.Param(bits))
        self.axis: str | None = None

    def __call__(
        self, x: Float[Array, "rows inputs"], /, *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows outputs"]:
        peak = greatest(jnp.max(jnp.abs(x), axis=-1, keepdims=True), axis=self.axis)
        step = jnp.maximum(peak, _SMALLEST) * (1.0 / _LEVELS)
        # XLA makes this of a quotient where it knows that the step is one per row, and else does not.
        scaled = x * (1.0 / step)
        if self.bits is None:
            sums = total(self._product(jnp.round(scaled)), axis=self.axis)
            return sums.astype(jnp.float32) * step * self.scale[...]
        bits = self.bits[...]
        parts = 1 << bits
        levels = jnp.round(scaled * parts.astype(jnp.float32)).astype(jnp.int32)
        steps = (levels + (parts >> 1)) >> bits
        below = levels - (steps << bits)
        both = self._product(jnp.concatenate([steps, below]))
        rows = x.shape[0]
        sums = total((both[:rows] << bits) + both[rows:], axis=self.axis)
        # A power of two divides without rounding.
        return sums.astype(jnp.float32) * (step / parts.astype(jnp.float32)) * self.scale[...]

    def _product(self, levels: Num[Array, "rows inputs"]) -> Int32[Array, "rows outputs"]:
        return _contract(levels.astype(jnp.int8), self.weight[...], jnp.int32)


class Int8WeightLinear(Int8Linear):
    """Per-channel int8 weights, activations rounded to bf16, sums in f32. Levels are exact in bf16, so activations are
    all that is rounded. Over several devices, sums differ in their last bits."""

    def __init__(self, weight: Int8[Array, "outputs inputs"], *, scale: Float32[Array, " outputs"]) -> None:
        super().__init__(weight, scale=scale)

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
            bits = min(part.bits for part in quantised)
            return _int8_linear(jnp.asarray(levels), scale=scale, bits=bits, precision=precision)


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
            return _int8_linear(jnp.zeros(shape, jnp.int8), scale=scale, bits=0, precision=precision)


def _int8_linear(levels: Array, *, scale: Array, bits: int, precision: Precision) -> Int8Linear:
    if precision is Precision.W8A16:
        return Int8WeightLinear(levels, scale=scale)
    return Int8Linear(levels, scale=scale, bits=jnp.int32(bits) if precision is Precision.INT8 else None)


class Quantised(NamedTuple):
    """Per-channel int8: `weight = levels * scale`.

    Attributes:
        bits: below its step that an activation may have, so that no sum is more than int32 holds.
    """

    levels: Int8[np.ndarray, "outputs inputs"]
    scale: Float32[np.ndarray, " outputs"]
    bits: int


def quantise(weight: Float32[np.ndarray, "outputs inputs"], /) -> Quantised:
    """Rounds every output's weights to 255 levels. Takes little memory beside the weight."""
    scale = np.empty(len(weight), np.float32)
    levels = np.empty(weight.shape, np.int8)
    largest = 0
    for first in range(0, len(weight), _ROWS_AT_ONCE):
        part = weight[first : first + _ROWS_AT_ONCE]
        steps = np.maximum(np.abs(part).max(axis=1), _SMALLEST) / np.float32(_LEVELS)
        own = levels[first : first + len(part)]
        scale[first : first + len(part)] = steps
        own[...] = np.round(part / steps[:, None])
        largest = max(largest, int(np.abs(own).sum(axis=1, dtype=np.int32).max(initial=0)))
    return Quantised(levels=levels, scale=scale, bits=_bits(largest))


def _bits(largest: int, /) -> int:
    """For weights of whose outputs none has levels that add up to more than this, signs left out."""
    reach = max(largest, 1) * _LEVELS
    return max(min(_MOST_BITS, (_LARGEST_SUM // reach).bit_length() - 1), 0)


def _contract(x: Array, weight: Array, sums: DTypeLike) -> Array:
    return jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST, preferred_element_type=sums
    )
