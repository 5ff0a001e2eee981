"""The k-th largest value of a row, without a sort."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from deployments.lm.sampling.blocks import BLOCK, largest

_FEW = 64


def kth_largest(
    blocks: Float32[Array, "rows blocks block"],
    *,
    maxima: Float32[Array, "rows blocks"],
    k: Int32[Array, " rows"],
) -> Float32[Array, " rows"]:
    """A threshold that exactly the k largest of each row reach, and whatever equals the k-th.

    Few are found through their blocks, many by bisection; both give the same.
    """

    def from_blocks() -> Float32[Array, " rows"]:
        values, _ = largest(blocks, maxima=maxima, count=min(_FEW, BLOCK))
        return jnp.take_along_axis(values, jnp.clip(k, 1, _FEW)[:, None] - 1, axis=-1)[:, 0]

    def by_bisection() -> Float32[Array, " rows"]:
        return _bisected(blocks.reshape(blocks.shape[0], -1), maxima=maxima, k=k)

    threshold: Float32[Array, " rows"] = jax.lax.cond(jnp.any(k > _FEW), by_bisection, from_blocks)
    return threshold


class _Bracket(NamedTuple):
    """At least k keys are at or above `low`, fewer than k at or above `high`."""

    low: UInt32[Array, " rows"]
    high: UInt32[Array, " rows"]
    is_exact: Bool[Array, " rows"]


def _bisected(
    scores: Float32[Array, "rows vocabulary"], *, maxima: Float32[Array, "rows blocks"], k: Int32[Array, " rows"]
) -> Float32[Array, " rows"]:
    """Bisection over the ordered bits of a float, which stops as soon as k keys are left.

    It starts from the k-th largest of the blocks' maxima: k blocks reach it, so at least k keys do.
    """
    keys, peaks = _ordered_bits(scores), _ordered_bits(maxima)
    wanted = jnp.clip(k, 1, scores.shape[-1])
    top = jnp.max(peaks, axis=-1)
    start = _Bracket(low=jnp.zeros_like(top), high=top + 1, is_exact=wanted > peaks.shape[-1])
    low = jnp.where(start.is_exact, 0, _bisect(peaks, wanted=wanted, start=start).low)
    found = _bisect(keys, wanted=wanted, start=_Bracket(low=low, high=top + 1, is_exact=jnp.zeros_like(wanted, bool)))
    return jnp.min(jnp.where(keys >= found.low[:, None], scores, jnp.inf), axis=-1)


def _bisect(keys: UInt32[Array, "rows keys"], *, wanted: Int32[Array, " rows"], start: _Bracket) -> _Bracket:
    def halve(bracket: _Bracket) -> _Bracket:
        middle = bracket.low + (bracket.high - bracket.low) // 2
        count = jnp.sum((keys >= middle[:, None]).astype(jnp.int32), axis=-1)
        narrower = _Bracket(
            low=jnp.where(count >= wanted, middle, bracket.low),
            high=jnp.where(count >= wanted, bracket.high, middle),
            is_exact=count == wanted,
        )
        kept: _Bracket = jax.tree.map(lambda old, new: jnp.where(_is_done(bracket), old, new), bracket, narrower)
        return kept

    end: _Bracket = jax.lax.while_loop(lambda bracket: ~jnp.all(_is_done(bracket)), halve, start)
    return end


def _is_done(bracket: _Bracket) -> Bool[Array, " rows"]:
    return bracket.is_exact | (bracket.high - bracket.low <= 1)


def _ordered_bits(x: Float32[Array, "rows width"]) -> UInt32[Array, "rows width"]:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
