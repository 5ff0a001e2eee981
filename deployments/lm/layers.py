"""Parts that several architectures share. Each computes its rows one by one: no value depends on a neighbour."""

from enum import StrEnum

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Int32

from deployments.lm.mesh import first_of, total
from deployments.lm.quant.linear import Linear
from deployments.lm.sums import rounded, row_sum


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation (Zhang and Sennrich, 2019). Without a weight nothing is multiplied."""

    def __init__(self, weight: Float32[Array, " width"] | None, *, epsilon: float) -> None:
        self.weight = None if weight is None else nnx.Param(weight)
        self.epsilon = epsilon

    def __call__(self, x: Float32[Array, "*rows width"], /) -> Float32[Array, "*rows width"]:
        mean_square = row_sum(x * x) * (1.0 / x.shape[-1])
        normed = x * jax.lax.rsqrt(mean_square + self.epsilon)
        return normed if self.weight is None else normed * self.weight[...]


class Activation(StrEnum):
    """What bends a gate."""

    SILU = "silu"
    GELU = "gelu-tanh"

    def __call__(self, x: Float32[Array, "*rows width"], /) -> Float32[Array, "*rows width"]:
        """`GELU` is its approximation by a hyperbolic tangent, as Gemma was trained with."""
        return jax.nn.silu(x) if self is Activation.SILU else jax.nn.gelu(x, approximate=True)


class GatedFeedForward(nnx.Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer, 2020).

    Args:
        gate_up: both, gate first.
    """

    def __init__(self, *, gate_up: Linear, down: Linear, activation: Activation = Activation.SILU) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    def __call__(self, x: Float32[Array, "rows width"], /, *, live: Int32[Array, ""]) -> Float32[Array, "rows width"]:
        gate, up = jnp.split(self.gate_up(x, live=live), 2, axis=-1)
        return self.down(self.activation(gate) * up, live=live)


class Embedding(nnx.Module):
    """Token ids to vectors, in f32 whatever the table is kept in.

    Attributes:
        axis: the devices that each have some of the table; `None` where this one has all.
    """

    def __init__(self, table: Float[Array, "vocabulary width"]) -> None:
        self.table = nnx.Param(table)
        self.axis: str | None = None

    def __call__(self, tokens: Int[Array, " rows"], /) -> Float32[Array, "rows width"]:
        table = self.table[...]
        if self.axis is None:
            return table[tokens].astype(jnp.float32)
        places = tokens - first_of(table.shape[0], axis=self.axis)
        # The one device that has a row gives it; what the others add is zero, so the sum is the row.
        is_own = (places >= 0) & (places < table.shape[0])
        own = jnp.where(is_own[:, None], table[jnp.where(is_own, places, 0)].astype(jnp.float32), 0.0)
        return total(own, axis=self.axis)


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
    return jnp.concatenate(
        [
            rounded(low * cosine) - rounded(high * sine),
            rounded(high * cosine) + rounded(low * sine),
            rest,
        ],
        axis=-1,
    )
