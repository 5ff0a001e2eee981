"""Rows of a vocabulary in blocks, so that whatever looks for large values can leave most of a row alone.

Knows numbers, not what they mean. Every answer depends on its own row only, bit for bit.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from deployments.lm.sums import row_sum

BLOCK = 128
"""Tokens per block: the lanes of a TPU register, and several of a CPU's."""

NO_TOKEN = 2**31 - 1
"""Larger than any token."""

_PIECE = 8
_PARTS = 8


def in_blocks(x: Float32[Array, "rows vocabulary"]) -> Float32[Array, "rows blocks block"]:
    """The rows, filled up to whole blocks with minus infinity."""
    padded = jnp.pad(x, ((0, 0), (0, -x.shape[-1] % BLOCK)), constant_values=-jnp.inf)
    return padded.reshape(x.shape[0], -1, BLOCK)


def picked(
    blocks: Float32[Array, "rows blocks width"], *, numbers: Int32[Array, "rows chosen"]
) -> Float32[Array, "rows chosen width"]:
    """Some blocks of each row."""
    return jnp.take_along_axis(blocks, numbers[:, :, None], axis=1)


def first_largest(
    scores: Float32[Array, "rows width"], *, tokens: Int32[Array, "#rows width"]
) -> tuple[Int32[Array, " rows"], Float32[Array, " rows"]]:
    """The largest score of each row and the smallest token that has it: two plain reductions, which vectorise where a
    paired one does not."""
    peak = jnp.max(scores, axis=-1)
    return jnp.min(jnp.where(scores == peak[:, None], tokens, NO_TOKEN), axis=-1), peak


def largest(
    blocks: Float32[Array, "rows blocks block"], *, maxima: Float32[Array, "rows blocks"], count: int
) -> tuple[Float32[Array, "rows count"], Int32[Array, "rows count"]]:
    """The `count` largest values of each row in falling order, and where they are.

    They lie in the `count` blocks with the largest maxima, and in as many pieces of those.
    """
    _, chosen = jax.lax.top_k(maxima, min(count, maxima.shape[-1]))
    pieces = picked(blocks, numbers=chosen).reshape(blocks.shape[0], -1, _PIECE)
    _, narrower = jax.lax.top_k(jnp.max(pieces, axis=-1), min(count, pieces.shape[1]))
    values, places = jax.lax.top_k(picked(pieces, numbers=narrower).reshape(blocks.shape[0], -1), count)
    piece = jnp.take_along_axis(narrower, places // _PIECE, axis=-1)
    in_chosen = piece * _PIECE + places % _PIECE
    block = jnp.take_along_axis(chosen, in_chosen // BLOCK, axis=-1)
    return values, block * BLOCK + in_chosen % BLOCK


def folded_sum(
    blocks: Float32[Array, "rows blocks block"],
    *,
    term: Callable[[Float32[Array, "rows part"]], Float32[Array, "rows part"]],
) -> Float32[Array, " rows"]:
    """The sum of `term` over each row.

    The terms are added in eight parts on the fly, in an order that is written down here, so that they need not be
    stored; what is left is summed as `row_sum` does, and needs at least 8 rows.
    """
    parts = blocks.reshape(blocks.shape[0], _PARTS, -1)
    total = term(parts[:, 0])
    for part in range(1, _PARTS):
        total = total + term(parts[:, part])
    return row_sum(total)[:, 0]
