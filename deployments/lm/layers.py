"""Blocks that several architectures share. Each computes its rows one by one: no value depends on a neighbour."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int

from deployments.lm.sums import row_sum


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

    def __init__(self, weight: Float32[Array, " width"], *, epsilon: float) -> None:
        self.weight = nnx.Param(weight)
        self.epsilon = epsilon

    def __call__(self, x: Float32[Array, "rows width"], /) -> Float32[Array, "rows width"]:
        mean_square = row_sum(x * x) * (1.0 / x.shape[-1])
        return x * jax.lax.rsqrt(mean_square + self.epsilon) * self.weight[...]


class Embedding(nnx.Module):
    """Token ids to vectors, in f32 whatever the table is kept in."""

    def __init__(self, table: Float[Array, "vocabulary width"]) -> None:
        self.table = nnx.Param(table)

    def __call__(self, tokens: Int[Array, " rows"], /) -> Float32[Array, "rows width"]:
        return self.table[...][tokens].astype(jnp.float32)


def rope_angles(
    positions: Int[Array, " rows"], *, frequencies: Float32[Array, " half"]
) -> tuple[Float32[Array, "rows half"], Float32[Array, "rows half"]]:
    """Cosine and sine of every rotary angle (Su et al., 2021)."""
    angles = positions[:, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float32[Array, "rows heads width"],
    *,
    cosine: Float32[Array, "rows half"],
    sine: Float32[Array, "rows half"],
) -> Float32[Array, "rows heads width"]:
    """Turns pairs `(i, i + half)`, the order Hugging Face checkpoints use; other orders are permuted at load."""
    half = cosine.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = cosine[:, None], sine[:, None]
    return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=-1)
