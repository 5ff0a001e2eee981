"""Draws tokens from logits so that a draw depends on its logits, settings, seed and place alone.

Noise comes from a stateless integer hash of (seed, choice, position, token), turned into Gumbel noise; the draw is the
largest noisy score (Gumbel, 1954; the "Gumbel-max trick"). Whoever knows the key draws the same token: that is what
lets any draft be checked against the target's own draw.

Truncation needs no sort. The allowed tokens are those at or above some threshold, so the walk down the noisy scores
stops at the first allowed one; a refused token raises the bar to its own logit, as in quickselect.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from deployments.lm.sums import row_sum

_GOLDEN = 0x9E3779B9
_BLOCK = 128
_MIX = (0x7FEB352D, 0x846CA68B)
# Where vLLM draws the line too; below it the division overflows before it changes a draw.
_GREEDY_BELOW = 1e-5


class SamplerRows(NamedTuple):
    """The sampler settings and the key of each row.

    Attributes:
        temperature: 0 for the most likely token.
        top_k: 0 keeps all.
        position: the absolute position of the token to be drawn.
    """

    temperature: Float32[Array, " rows"]
    top_k: Int32[Array, " rows"]
    top_p: Float32[Array, " rows"]
    min_p: Float32[Array, " rows"]
    seed: UInt32[Array, " rows"]
    choice: UInt32[Array, " rows"]
    position: UInt32[Array, " rows"]


class Draws(NamedTuple):
    """A token per row, and the score it won with (bits to compare, never used to decide anything)."""

    tokens: Int32[Array, " rows"]
    scores: Float32[Array, " rows"]


def draw(logits: Float32[Array, "rows vocabulary"], *, settings: SamplerRows) -> Draws:
    """The token each row draws: temperature, then `min_p`, `top_k` and `top_p` in that order, as vLLM applies them."""
    greedy = settings.temperature < _GREEDY_BELOW
    top = _argmax(logits)
    drawn = jax.lax.cond(jnp.all(greedy), lambda: top, lambda: _draw_noisy(logits, settings=settings, greedy=greedy))
    return Draws(tokens=jnp.where(greedy, top.tokens, drawn.tokens), scores=jnp.where(greedy, top.scores, drawn.scores))


def gumbel(settings: SamplerRows, *, vocabulary: int) -> Float32[Array, "rows vocabulary"]:
    """Gumbel noise for every token of every row."""
    first = _mix(settings.seed ^ _mix(settings.choice + jnp.uint32(_GOLDEN), _MIX[0]), _MIX[1])
    # Mixed twice: once alone would cancel a token's own mixing wherever the two products are equal.
    second = _mix(_mix(settings.position ^ first, _MIX[1]) + jnp.uint32(_GOLDEN), _MIX[0])
    tokens = jnp.arange(vocabulary, dtype=jnp.uint32) * jnp.uint32(_GOLDEN)
    mixed = tokens[None, :] + first[:, None]
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(_MIX[0])
    mixed = (mixed ^ (mixed >> 15) ^ second[:, None]) * jnp.uint32(_MIX[1])
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(_MIX[0])
    mixed = mixed ^ (mixed >> 15)
    # log1p keeps the small values that make large noise; a plain log(u) near 1 has lost them.
    share = (mixed.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    share = jnp.minimum(share, jnp.float32(1.0 - 2.0**-24))
    return -jnp.log(-jnp.log1p(-share))


def _mix(x: UInt32[Array, " rows"], factor: int) -> UInt32[Array, " rows"]:
    x = (x ^ (x >> 16)) * jnp.uint32(factor)
    return x ^ (x >> 15)


def _draw_noisy(
    logits: Float32[Array, "rows vocabulary"], *, settings: SamplerRows, greedy: Bool[Array, " rows"]
) -> Draws:
    scaled = logits / jnp.where(greedy, 1.0, settings.temperature)[:, None]
    peak = jnp.max(scaled, axis=-1)
    floor = jnp.where(settings.min_p > 0.0, peak + jnp.log(jnp.maximum(settings.min_p, 1e-30)), -jnp.inf)
    limited = (settings.top_k > 0) & ~greedy
    floor = jax.lax.cond(
        jnp.any(limited),
        lambda: jnp.maximum(floor, jnp.where(limited, _kth_largest(scaled, k=settings.top_k), -jnp.inf)),
        lambda: floor,
    )
    noisy = jnp.where(scaled >= floor[:, None], scaled + gumbel(settings, vocabulary=logits.shape[-1]), -jnp.inf)
    best = _argmax(noisy)
    nucleus = (settings.top_p < 1.0) & ~greedy
    drawn: Draws = jax.lax.cond(
        jnp.any(nucleus),
        lambda: _walk_to_nucleus(noisy, scaled=scaled, peak=peak, floor=floor, best=best, top_p=settings.top_p),
        lambda: best,
    )
    return drawn


class _Walk(NamedTuple):
    best: Draws
    refused: Bool[Array, " rows"]
    bar: Float32[Array, " rows"]


def _walk_to_nucleus(
    noisy: Float32[Array, "rows vocabulary"],
    *,
    scaled: Float32[Array, "rows vocabulary"],
    peak: Float32[Array, " rows"],
    floor: Float32[Array, " rows"],
    best: Draws,
    top_p: Float32[Array, " rows"],
) -> Draws:
    kept = jnp.where(scaled >= floor[:, None], jnp.exp(scaled - peak[:, None]), 0.0)
    budget = jnp.where(top_p < 1.0, top_p * row_sum(kept)[:, 0], jnp.inf)

    def judge(candidate: Draws) -> _Walk:
        logit = jnp.take_along_axis(scaled, candidate.tokens[:, None], axis=-1)[:, 0]
        above = row_sum(jnp.where(scaled > logit[:, None], kept, 0.0))[:, 0]
        return _Walk(best=candidate, refused=(above > 0.0) & (above >= budget), bar=logit)

    def onward(walk: _Walk) -> _Walk:
        again = judge(_argmax(jnp.where(scaled > walk.bar[:, None], noisy, -jnp.inf)))
        merged: _Walk = jax.tree.map(lambda new, old: jnp.where(walk.refused, new, old), again, walk)
        return merged

    return jax.lax.while_loop(lambda walk: jnp.any(walk.refused), onward, judge(best)).best


class _Bracket(NamedTuple):
    """At least k keys are at or above `low`, fewer than k at or above `high`."""

    low: UInt32[Array, " rows"]
    high: UInt32[Array, " rows"]
    is_exact: Bool[Array, " rows"]


def _kth_largest(scores: Float32[Array, "rows vocabulary"], *, k: Int32[Array, " rows"]) -> Float32[Array, " rows"]:
    """A threshold that exactly the k largest of each row reach, and whatever equals the k-th.

    Bisection over the ordered bits of a float, which stops as soon as k keys are left. It starts from the k-th largest
    of the blocks' maxima: k blocks reach it, so at least k keys do.
    """
    keys = _ordered_bits(scores)
    wanted = jnp.clip(k, 1, scores.shape[-1])
    peaks = _block_maxima(keys)
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


def _block_maxima(keys: UInt32[Array, "rows vocabulary"]) -> UInt32[Array, "rows blocks"]:
    padded = jnp.pad(keys, ((0, 0), (0, -keys.shape[-1] % _BLOCK)))
    return jnp.max(padded.reshape(keys.shape[0], -1, _BLOCK), axis=-1)


def _ordered_bits(x: Float32[Array, "rows vocabulary"]) -> UInt32[Array, "rows vocabulary"]:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _argmax(scores: Float32[Array, "rows vocabulary"]) -> Draws:
    """The first largest of each row: two plain reductions, which vectorise where a paired one does not."""
    peak = jnp.max(scores, axis=-1)
    places = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    first = jnp.min(jnp.where(scores == peak[:, None], places, scores.shape[-1]), axis=-1)
    return Draws(tokens=jnp.minimum(first, scores.shape[-1] - 1), scores=peak)
