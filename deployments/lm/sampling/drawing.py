"""Draws tokens from logits so that a draw depends on its logits, settings, seed and place alone.

The draw is the largest noisy score (Gumbel, 1954; the "Gumbel-max trick"). Hardly any token can win, and a bound on
the noise that needs no logarithm says which: so blocks of tokens are looked at closely in the order of their bounds,
until none that is left can hold the winner. That changes what a draw costs, never what is drawn.

Truncation needs no sort. The allowed tokens are those at or above some threshold, so the walk down the noisy scores
stops at the first allowed one; a refused token raises the bar to its own logit, as in quickselect.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from deployments.lm.sampling.blocks import BLOCK, NO_TOKEN, first_largest, folded_sum, in_blocks, picked
from deployments.lm.sampling.noise import NoiseKey, gumbel, gumbel_bound, hashed, noise_key
from deployments.lm.sampling.share import Share, all_of
from deployments.lm.sampling.truncation import kth_largest

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


class _Field(NamedTuple):
    """What a draw chooses from.

    Attributes:
        blocks: the logits. The temperature multiplies the noise instead of dividing them, so that every comparison is
            one of logits as they are: a quotient may be rounded in two ways in two places of one program.
        maxima: the largest logit of each block.
        floor: tokens below it are out.
        first: the number of the first token.
    """

    blocks: Float32[Array, "rows blocks block"]
    maxima: Float32[Array, "rows blocks"]
    temperature: Float32[Array, " rows"]
    key: NoiseKey
    floor: Float32[Array, " rows"]
    peak: Float32[Array, " rows"]
    first: Int32[Array, ""] | int


def draw(logits: Float32[Array, "rows vocabulary"], *, settings: SamplerRows, share: Share | None = None) -> Draws:
    """The token each row draws: temperature, then `min_p`, `top_k` and `top_p` in that order, as vLLM applies them.

    Args:
        share: which tokens the logits are of, where several devices share the vocabulary; `None` means all. Logits are
            gathered only where some row wants `top_k` or `top_p`, which need them all.
    """
    share = share or all_of(logits.shape[-1])
    greedy = settings.temperature < _GREEDY_BELOW
    blocks = in_blocks(logits)
    maxima = jnp.max(blocks, axis=-1)
    top = _likeliest(blocks, maxima=maxima, share=share)

    def noisy() -> Draws:
        return _draw_noisy(blocks, maxima=maxima, settings=settings, greedy=greedy, share=share)

    def gathered() -> Draws:
        return draw(share.whole(logits), settings=settings)

    def noisy_shares() -> Draws:
        is_cut = ~greedy & ((settings.top_k > 0) | (settings.top_p < 1.0))
        drawn: Draws = jax.lax.cond(jnp.any(is_cut), gathered, noisy)
        return drawn

    drawn = jax.lax.cond(jnp.all(greedy), lambda: top, noisy if share.axis is None else noisy_shares)
    return Draws(tokens=jnp.where(greedy, top.tokens, drawn.tokens), scores=jnp.where(greedy, top.scores, drawn.scores))


def _likeliest(
    blocks: Float32[Array, "rows blocks block"], *, maxima: Float32[Array, "rows blocks"], share: Share
) -> Draws:
    block = jnp.argmax(maxima, axis=-1).astype(jnp.int32)
    tokens, scores = first_largest(_block(blocks, number=block), tokens=_tokens_of(block, first=share.first))
    return _winner(Draws(tokens=tokens, scores=scores), share=share)


def _winner(own: Draws, *, share: Share) -> Draws:
    """Of what each device found in its tokens, the largest; of equals the one with the smallest token."""
    scores = share.largest(own.scores)
    tokens = share.smallest_token(jnp.where(own.scores == scores, own.tokens, NO_TOKEN))
    return Draws(tokens=_existing(tokens), scores=scores)


def _draw_noisy(
    blocks: Float32[Array, "rows blocks block"],
    *,
    maxima: Float32[Array, "rows blocks"],
    settings: SamplerRows,
    greedy: Bool[Array, " rows"],
    share: Share,
) -> Draws:
    """Where several devices share the vocabulary, no row wants `top_k` or `top_p`."""
    temperature = jnp.where(greedy, 1.0, settings.temperature)
    field = _Field(
        blocks=blocks,
        maxima=maxima,
        temperature=temperature,
        key=noise_key(seed=settings.seed, choice=settings.choice, position=settings.position),
        floor=jnp.full_like(temperature, -jnp.inf),
        peak=share.largest(jnp.max(maxima, axis=-1)),
        first=share.first,
    )
    by_share = field.peak + temperature * jnp.log(jnp.maximum(settings.min_p, 1e-30))
    floor = jnp.where(settings.min_p > 0.0, by_share, -jnp.inf)
    if share.axis is not None:
        field = field._replace(floor=floor)
        own = _search(field, bounds=_bounds(field), bar=jnp.full_like(floor, -jnp.inf))
        return _winner(own, share=share)
    limited = jnp.where(greedy, 0, settings.top_k)
    floor = jax.lax.cond(
        jnp.any(limited > 0),
        lambda: jnp.maximum(floor, jnp.where(limited > 0, kth_largest(blocks, maxima=maxima, k=limited), -jnp.inf)),
        lambda: floor,
    )
    field = field._replace(floor=floor)
    bounds = _bounds(field)
    best = _search(field, bounds=bounds, bar=jnp.full_like(floor, -jnp.inf))
    nucleus = (settings.top_p < 1.0) & ~greedy
    drawn: Draws = jax.lax.cond(
        jnp.any(nucleus),
        lambda: _walk_to_nucleus(field, bounds=bounds, best=best, top_p=jnp.where(nucleus, settings.top_p, 1.0)),
        lambda: best,
    )
    return drawn


def _bounds(field: _Field) -> Float32[Array, "rows blocks"]:
    """For each block a score that none of its tokens exceeds."""
    rows, count, _ = field.blocks.shape
    logits = field.blocks.reshape(rows, -1)
    noise = gumbel_bound(hashed(field.key, tokens=field.first + jnp.arange(count * BLOCK, dtype=jnp.int32)[None, :]))
    bound = jnp.where(logits >= field.floor[:, None], logits + field.temperature[:, None] * noise, -jnp.inf)
    # Stored before it is reduced: merged into a reduction, the hash is computed one token at a time on a CPU.
    bound = jax.lax.optimization_barrier(bound)
    return jnp.max(bound.reshape(field.blocks.shape), axis=-1)


class _Search(NamedTuple):
    best: Draws
    bounds: Float32[Array, "rows blocks"]

    @property
    def unfinished(self) -> Bool[Array, " rows"]:
        ahead = jnp.max(self.bounds, axis=-1)
        return (ahead >= self.best.scores) & (ahead > -jnp.inf)


def _search(field: _Field, *, bounds: Float32[Array, "rows blocks"], bar: Float32[Array, " rows"]) -> Draws:
    """The first of the largest noisy scores among tokens at the floor or above and above `bar`."""

    def onward(search: _Search) -> _Search:
        block = jnp.argmax(search.bounds, axis=-1).astype(jnp.int32)
        tokens = _tokens_of(block, first=field.first)
        logits = _block(field.blocks, number=block)
        noisy = logits + field.temperature[:, None] * gumbel(hashed(field.key, tokens=tokens))
        stands = (logits >= field.floor[:, None]) & (logits > bar[:, None])
        token, score = first_largest(jnp.where(stands, noisy, -jnp.inf), tokens=tokens)
        best = search.best
        better = (score > best.scores) | ((score == best.scores) & (token < best.tokens) & (score > -jnp.inf))
        seen = jnp.arange(bounds.shape[-1], dtype=jnp.int32) == block[:, None]
        return _Search(
            best=Draws(tokens=jnp.where(better, token, best.tokens), scores=jnp.where(better, score, best.scores)),
            bounds=jnp.where(seen, -jnp.inf, search.bounds),
        )

    nobody = Draws(tokens=jnp.zeros_like(bar, jnp.int32), scores=jnp.full_like(bar, -jnp.inf))
    end: _Search = jax.lax.while_loop(
        lambda search: jnp.any(search.unfinished), onward, _Search(best=nobody, bounds=bounds)
    )
    return end.best


class _Walk(NamedTuple):
    best: Draws
    refused: Bool[Array, " rows"]
    bar: Float32[Array, " rows"]


def _walk_to_nucleus(
    field: _Field, *, bounds: Float32[Array, "rows blocks"], best: Draws, top_p: Float32[Array, " rows"]
) -> Draws:
    """Down the noisy scores to the first token with less than `top_p` of the probability above it."""
    peak, sharpness = field.peak[:, None], 1.0 / field.temperature[:, None]

    def mass(logits: Float32[Array, "rows part"], *, over: Float32[Array, " rows"]) -> Float32[Array, "rows part"]:
        stands = (logits >= field.floor[:, None]) & (logits > over[:, None])
        return jnp.where(stands, jnp.exp((logits - peak) * sharpness), 0.0)

    def mass_over(limit: Float32[Array, " rows"]) -> Float32[Array, " rows"]:
        return folded_sum(field.blocks, term=lambda part: mass(part, over=limit))

    budget = jnp.where(top_p < 1.0, top_p * mass_over(jnp.full_like(top_p, -jnp.inf)), jnp.inf)

    def judge(candidate: Draws) -> _Walk:
        block = _block(field.blocks, number=candidate.tokens // BLOCK)
        logit = jnp.take_along_axis(block, candidate.tokens[:, None] % BLOCK, axis=-1)[:, 0]
        above = mass_over(logit)
        return _Walk(best=candidate, refused=(above > 0.0) & (above >= budget), bar=logit)

    def onward(walk: _Walk) -> _Walk:
        ahead = jnp.where(walk.refused[:, None] & (field.maxima > walk.bar[:, None]), bounds, -jnp.inf)
        again = judge(_search(field, bounds=ahead, bar=walk.bar))
        merged: _Walk = jax.tree.map(lambda new, old: jnp.where(walk.refused, new, old), again, walk)
        return merged

    return jax.lax.while_loop(lambda walk: jnp.any(walk.refused), onward, judge(best)).best


def _block(
    blocks: Float32[Array, "rows blocks block"], *, number: Int32[Array, " rows"]
) -> Float32[Array, "rows block"]:
    return picked(blocks, numbers=number[:, None])[:, 0]


def _tokens_of(block: Int32[Array, " rows"], *, first: Int32[Array, ""] | int) -> Int32[Array, "rows block"]:
    return first + block[:, None] * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)


def _existing(tokens: Int32[Array, " rows"]) -> Int32[Array, " rows"]:
    """A row that is not a number anywhere has no largest score; it draws token 0."""
    return jnp.where(tokens == NO_TOKEN, 0, tokens)
