"""One device's part of a vocabulary that several share: which tokens it scores, and what the devices make of theirs.

Maxima and minima do not depend on the order in which devices are asked, so a draw is the same over any number of them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from deployments.lm.mesh import first_of, gathered, greatest
from deployments.lm.sampling.blocks import NO_TOKEN


@dataclass(frozen=True, kw_only=True)
class Share:
    """Consecutive tokens, as many on each device; past the vocabulary's end they score minus infinity.

    Attributes:
        axis: the devices; `None` where this one has all tokens.
        first: the number of the first token here.
        vocabulary: how many tokens there are in all.
    """

    axis: str | None
    first: Int32[Array, ""] | int
    vocabulary: int

    @classmethod
    def of(cls, scores: Float32[Array, "rows tokens"], /, *, axis: str | None, vocabulary: int) -> "Share":
        """The share whose scores these are."""
        return cls(axis=axis, first=first_of(scores.shape[-1], axis=axis), vocabulary=vocabulary)

    def whole(self, scores: Float32[Array, "rows tokens"], /) -> Float32[Array, "rows vocabulary"]:
        """The scores of every token."""
        return gathered(scores, axis=self.axis)[:, : self.vocabulary]

    def largest(self, own: Float32[Array, " rows"], /) -> Float32[Array, " rows"]:
        """The largest of all devices."""
        return greatest(own, axis=self.axis)

    def smallest_token(self, own: Int32[Array, " rows"], /) -> Int32[Array, " rows"]:
        """The smallest of all devices; `NO_TOKEN` where none has one."""
        return own if self.axis is None else jax.lax.pmin(own, self.axis)

    def places(self, tokens: Int32[Array, " tokens"], /, *, count: int) -> Int32[Array, " tokens"]:
        """Where tokens are among the `count` here; `NO_TOKEN` for those that are elsewhere."""
        place = tokens - self.first
        return jnp.where((place >= 0) & (place < count), place, NO_TOKEN)


def all_of(vocabulary: int, /) -> Share:
    """The only share there is."""
    return Share(axis=None, first=0, vocabulary=vocabulary)
