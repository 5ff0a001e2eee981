"""Products with the int8 weights of many experts: `native.cc` for processors; `multiply` is its Python side."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int, Int32, UInt8

from deployments.lm.kernels.native import EXPERT_LINEAR


def multiply(
    x: Float32[Array, "rows vectors inputs"],
    *,
    chosen: Int[Array, "rows per_token"],
    weights: UInt8[Array, "experts blocks quads 64"],
    scales: Float32[Array, "experts outputs"],
    live: Int32[Array, ""],
    activation: str = "",
) -> Float32[Array, "rows per_token outputs"]:
    """`x W^T` with the matrix of each expert chosen, for the first `live` rows; the rest is not written.

    Args:
        x: one vector per row for all its experts, or one for each of them.
        chosen: which experts; those of live rows must exist.
        weights: of each expert as `int8_linear.pack` lays them out, whose product has the same bits.
        activation: `silu` or `gelu-tanh` where `x` is gates and then as many values, which meet before the product.
    """
    result = jax.ShapeDtypeStruct((*chosen.shape, scales.shape[1]), jnp.float32)
    call = jax.ffi.ffi_call(EXPERT_LINEAR, result)
    product: Array = call(x, chosen.astype(jnp.int32), live, weights, scales, activation=activation)
    return product
