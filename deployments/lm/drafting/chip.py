"""Drafters that run on the verifier's device (`placement: chip`), between two windows of one device call.

Each drafts token for token what the strategy of the same kind drafts on the host. Knows arrays, no requests.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from deployments.lm.drafting.ngram import NgramSettings


class ChipDrafts(NamedTuple):
    """A chain per slot.

    Attributes:
        tokens: as wide as the longest chain that was asked for; what comes after `counts` of them means nothing.
    """

    tokens: Int32[Array, "slots k"]
    counts: Int32[Array, " slots"]


type ChipDrafter = Callable[[Int32[Array, "slots context"], Int32[Array, " slots"], Int32[Array, " slots"]], ChipDrafts]
"""From every slot's tokens, how many of them count, and the most drafts of each, to drafts."""


def ngram_on_chip(settings: NgramSettings, /, *, longest: int) -> ChipDrafter:
    """Copies from each slot's own tokens, as `ngram.NgramIndex` does, without an index: it looks at every place.

    The method is prompt lookup decoding (A. Saxena, 2023).

    Args:
        longest: the most drafts of a slot.
    """

    def draft(
        tokens: Int32[Array, "slots context"], lengths: Int32[Array, " slots"], most: Int32[Array, " slots"]
    ) -> ChipDrafts:
        place = _place(tokens, lengths, settings=settings)
        # A copy that reaches the end goes on in what it has copied.
        known = jnp.maximum(lengths - place, 1)
        steps = place[:, None] + jnp.arange(longest)[None, :] % known[:, None]
        copied = jnp.take_along_axis(tokens, steps, axis=1, mode="clip")
        counts = jnp.where(place >= 0, jnp.clip(most, 0, min(settings.max_k, longest)), 0)
        return ChipDrafts(tokens=copied, counts=counts)

    return draft


def _place(
    tokens: Int32[Array, "slots context"], lengths: Int32[Array, " slots"], *, settings: NgramSettings
) -> Int32[Array, " slots"]:
    """What last followed the longest run that also stands at the end; -1 where no run is known."""
    numbers = jnp.arange(tokens.shape[1])[None, :]
    # A run is known once a token follows it, so the one at the very end never finds itself.
    alike: Bool[Array, "slots context"] = numbers < lengths[:, None]
    best = jnp.full(lengths.shape, -1)
    for n in range(1, settings.max_n + 1):
        last = jnp.take_along_axis(tokens, lengths[:, None] - n, axis=1, mode="clip")
        # Place p follows a run of n whose first token stands at p - n.
        alike &= (numbers >= n) & (jnp.roll(tokens, n, axis=1) == last)
        if n >= settings.min_n:
            latest = jnp.max(jnp.where(alike, numbers, -1), axis=1)
            best = jnp.where(latest >= 0, latest, best)
    return best
