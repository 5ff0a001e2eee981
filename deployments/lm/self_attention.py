"""Attention as a layer: projections, rotation, and the product with the paged cache. Every family's variant is here."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32

from deployments.lm.attention import attend, write
from deployments.lm.decoder import Angles, Mixed, Window
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import RMSNorm, rotate
from deployments.lm.quant.linear import Linear


class Projected(NamedTuple):
    """A window's queries, keys and values; `gate` is what a gated variant weighs its result by."""

    queries: Float32[Array, "rows heads head_dim"]
    keys: Float32[Array, "rows kv_heads head_dim"]
    values: Float32[Array, "rows kv_heads head_dim"]
    gate: Float32[Array, "rows width"] | None


class SelfAttention(nnx.Module):
    """Attention of each row to its slot's positions up to its own.

    Args:
        qkv: queries, keys and values, one below the other; the gate, where there is one, after the queries.
        kv_heads: none in a layer that sees what an earlier one wrote into its entry of the cache (Gemma 4).
        bias: added to them.
        query_norm, key_norm: over each head.
        value_norm: the same for values, without a weight where the family has none.
        rotary: the number of the rotary table; `None` turns nothing.
        scale: what scores are multiplied by; `None` means head_dim ** -0.5.
        window: how many positions a row sees, its own included; `None` means all.
        is_gated: the result is weighed by a sigmoid of the gate (Qwen3.5).
        keys_are_values: values are the keys before their norm and rotation (Gemma 4).

    Attributes:
        exists: which queries are real, where some only fill a device's share up; `None` where all are.
        group: how many queries share a key in the whole network; a device may have fewer of them.
    """

    def __init__(
        self,
        *,
        qkv: Linear,
        output: Linear,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kernels: Kernels,
        bias: Float[Array, " outputs"] | None = None,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
        value_norm: RMSNorm | None = None,
        rotary: int | None = 0,
        scale: float | None = None,
        window: int | None = None,
        is_gated: bool = False,
        keys_are_values: bool = False,
    ) -> None:
        self.qkv = qkv
        self.bias = None if bias is None else nnx.Param(bias)
        self.output = output
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.value_norm = value_norm
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.rotary = rotary
        self.scale = scale
        self.window = window
        self.is_gated = is_gated
        self.keys_are_values = keys_are_values
        self.kernels = kernels
        self.exists: nnx.Variable[Array] | None = nnx.data(None)
        self.group = heads // max(kv_heads, 1)

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window, cache: Array) -> Mixed:
        """The layer's share of the residual stream, and its cache with the rows' keys and values written."""
        seen = self.project(x, window=window)
        if self.kv_heads:
            cache = write(
                cache,
                keys=seen.keys,
                values=seen.values,
                pages=window.rows.pages,
                offsets=window.rows.offsets,
                kernels=self.kernels,
                in_loop=window.rows.in_loop,
            )
        return Mixed(self.finish(seen, window=window, cache=cache), cache)

    def project(self, x: Float32[Array, "rows width"], /, *, window: Window) -> Projected:
        """Normed and rotated."""
        all_heads = self.qkv(x, live=window.rows.live)
        if self.bias is not None:
            all_heads = all_heads + self.bias[...]
        all_heads = all_heads.reshape(x.shape[0], -1, self.head_dim)
        gate = None
        if self.is_gated:
            queries, gate, rest = jnp.split(all_heads, [self.heads, 2 * self.heads], axis=1)
            gate = gate.reshape(x.shape[0], -1)
        else:
            queries, rest = jnp.split(all_heads, [self.heads], axis=1)
        keys, values = (rest, rest) if self.keys_are_values else jnp.split(rest, [self.kv_heads], axis=1)
        return Projected(
            queries=self._turned(queries, norm=self.query_norm, window=window),
            keys=self._turned(keys, norm=self.key_norm, window=window),
            values=values if self.value_norm is None else self.value_norm(values),
            gate=gate,
        )

    def finish(self, seen: Projected, *, window: Window, cache: Array) -> Float32[Array, "rows width"]:
        """From queries and a cache that holds the rows to the residual stream."""
        out = self._attended(seen.queries, window=window, cache=cache)
        if seen.gate is not None:
            out = out * jax.nn.sigmoid(seen.gate)
        if self.exists is not None:
            out = jnp.where(jnp.repeat(self.exists[...], self.head_dim), out, 0.0)
        return self.output(out, live=window.rows.live)

    def _attended(self, queries: Array, *, window: Window, cache: Array) -> Float32[Array, "rows width"]:
        """Always a whole group at a time: products of another shape may have other bits."""
        rows, own = queries.shape[0], self.heads // max(self.kv_heads, 1)
        missing = max(self.group - own, 0)
        if missing:
            grouped = queries.reshape(rows, self.kv_heads, own, self.head_dim)
            queries = jnp.pad(grouped, ((0, 0), (0, 0), (0, missing), (0, 0))).reshape(rows, -1, self.head_dim)
        out = attend(
            queries,
            cache=cache,
            tiles=window.tiles,
            kernels=self.kernels,
            scale=self.scale,
            window=self.window,
        )
        if missing:
            out = out.reshape(rows, self.kv_heads, self.group, self.head_dim)[:, :, :own].reshape(rows, -1)
        return out

    def _turned(self, heads: Array, *, norm: RMSNorm | None, window: Window) -> Array:
        normed = heads if norm is None else norm(heads)
        if self.rotary is None:
            return normed
        angles: Angles = window.angles[self.rotary]
        return rotate(normed, cosine=angles.cosine, sine=angles.sine)
