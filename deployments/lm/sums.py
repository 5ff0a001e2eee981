"""Sums whose order does not depend on how many rows are summed beside them.

A plain reduction takes one order below some size and another above it (XLA on CPU: 4,096 elements). A product with
ones always takes a product's order, and is faster as well.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

_COPIES = 8
_LARGEST = float(np.finfo(np.float32).max)


def row_sum(x: Float32[Array, "*rows width"], /) -> Float32[Array, "*rows 1"]:
    """The sum over the last axis, kept as an axis of one. There must be at least 8 rows in all."""
    width = x.shape[-1]
    ones = jnp.ones((_COPIES, width), x.dtype)
    sums = jax.lax.dot_general(
        x.reshape(-1, width),
        ones,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return sums[:, :1].reshape(*x.shape[:-1], 1)


def sum_in_order(parts: Float32[Array, "rows parts ..."], /) -> Float32[Array, "rows ..."]:
    """The sum of each row's few parts, one after the other."""
    whole = parts[:, 0]
    for number in range(1, parts.shape[1]):
        whole = whole + parts[:, number]
    return whole


def rounded(product: Float32[Array, "..."], /) -> Float32[Array, "..."]:
    """The product as it is, but never contracted with the sum it goes into.

    A compiler that multiplies and adds in one rounding does so for either product of a sum, or for none, as the rest
    of its loop suggests, which is another one in a window of another size. A bound stands between them.
    """
    return jnp.maximum(product, -_LARGEST)
