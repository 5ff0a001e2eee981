"""Products with int8 weights: `native.cc` for processors; `pack` and `multiply` are its Python side."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int8, Int32, UInt8

from deployments.lm.kernels.native import INT8_LINEAR

GROUP = 32
_OUTPUTS = 16
_SHIFT = 0x80


def pack(levels: Int8[np.ndarray, "outputs inputs"], /) -> UInt8[np.ndarray, "blocks quads 64"]:
    """Weights as the kernel reads them: 16 outputs side by side, four inputs of each; both padded with zeros."""
    outputs, inputs = levels.shape
    count, quads, _ = packed_shape(levels.shape)
    padded = np.zeros((count * _OUTPUTS, quads * 4), np.int8)
    padded[:outputs, :inputs] = levels
    blocks = padded.reshape(count, _OUTPUTS, quads, 4).transpose(0, 2, 1, 3)
    return blocks.reshape(packed_shape(levels.shape)).view(np.uint8) ^ np.uint8(_SHIFT)


def packed_shape(shape: tuple[int, ...], /) -> tuple[int, int, int]:
    """Of weights of `[outputs, inputs]`, as `pack` lays them out."""
    outputs, inputs = shape
    return -(-outputs // _OUTPUTS), -(-inputs // GROUP) * GROUP // 4, 4 * _OUTPUTS


def multiply(
    x: Float32[Array, "rows inputs"],
    *,
    weights: UInt8[Array, "blocks quads 64"],
    scales: Float32[Array, " outputs"],
    live: Int32[Array, ""],
) -> Float32[Array, "rows outputs"]:
    """`x W^T` for the first `live` rows, zero for the rest. `x` is rounded to int8 in groups of 32 inputs."""
    result = jax.ShapeDtypeStruct((x.shape[0], scales.shape[0]), jnp.float32)
    product: Array = jax.ffi.ffi_call(INT8_LINEAR, result)(x, live, weights, scales)
    return product
