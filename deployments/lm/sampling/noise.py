"""Noise from a counter: a stateless integer hash of (seed, choice, position, token), turned into Gumbel noise.

Whoever knows the key makes the same noise: that is what lets any draft be checked against the target's own draw.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt32

_GOLDEN = 0x9E3779B9
_MIX = (0x7FEB352D, 0x846CA68B)
_LOG_2 = 0.6931471805599453
# What rounding can take from the bound, with much to spare; it only decides how many blocks are looked at.
_SLACK = 1e-3


class NoiseKey(NamedTuple):
    """What is mixed into every token of a row."""

    first: UInt32[Array, " rows"]
    second: UInt32[Array, " rows"]


def noise_key(
    *, seed: UInt32[Array, " rows"], choice: UInt32[Array, " rows"], position: UInt32[Array, " rows"]
) -> NoiseKey:
    """The key of each row; `position` is the absolute one of the token to be drawn."""
    first = _mix(seed ^ _mix(choice + jnp.uint32(_GOLDEN), _MIX[0]), _MIX[1])
    # Mixed twice: once alone would cancel a token's own mixing wherever the two products are equal.
    second = _mix(_mix(position ^ first, _MIX[1]) + jnp.uint32(_GOLDEN), _MIX[0])
    return NoiseKey(first=first, second=second)


def hashed(key: NoiseKey, *, tokens: Int32[Array, "#rows tokens"]) -> UInt32[Array, "rows tokens"]:
    """32 even bits for every token named."""
    mixed = tokens.astype(jnp.uint32) * jnp.uint32(_GOLDEN) + key.first[:, None]
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(_MIX[0])
    mixed = (mixed ^ (mixed >> 15) ^ key.second[:, None]) * jnp.uint32(_MIX[1])
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(_MIX[0])
    return mixed ^ (mixed >> 15)


def gumbel(bits: UInt32[Array, "rows tokens"]) -> Float32[Array, "rows tokens"]:
    """Gumbel noise from even bits; the smaller they are as a number, the larger it is."""
    # log1p keeps the small values that make large noise; a plain log(u) near 1 has lost them.
    share = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    share = jnp.minimum(share, jnp.float32(1.0 - 2.0**-24))
    return -jnp.log(-jnp.log1p(-share))


def gumbel_bound(bits: UInt32[Array, "rows tokens"]) -> Float32[Array, "rows tokens"]:
    """A bound that `gumbel` never exceeds, without a logarithm, and mostly within 0.07 of it where noise is large.

    With s the share, -log(-log(1 - s)) is at most -log(s). A float's bits, read as an integer, are its base-2 logarithm
    with the mantissa taken as it is (Mitchell, 1962, "Computer multiplication and division using binary logarithms"),
    which is at most the logarithm and at least 0.0861 less.
    """
    # Halved, so that the conversion is that of a signed number, which is one instruction.
    share = (bits >> 1).astype(jnp.int32).astype(jnp.float32) + 0.25
    read = jax.lax.bitcast_convert_type(share, jnp.int32).astype(jnp.float32)
    return jnp.float32((127 + 31) * _LOG_2 + _SLACK) - read * jnp.float32(_LOG_2 / 2**23)


def _mix(x: UInt32[Array, " rows"], factor: int) -> UInt32[Array, " rows"]:
    x = (x ^ (x >> 16)) * jnp.uint32(factor)
    return x ^ (x >> 15)
