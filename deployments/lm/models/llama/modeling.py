"""The llama network over one window of rows. Knows no scheduler, no sampler, no checkpoint.

Source of the architecture: Touvron et al., 2023; rotary scaling of Llama 3 arrives as per-frequency factors.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32, Int, Int32

from deployments.lm.attention import Tiles, attend, write
from deployments.lm.cache.pages import Cache
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Embedding, RMSNorm, rope_angles, rotate
from deployments.lm.quant.linear import Linear


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The numbers that define one llama network."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float
    rope_dims: int
    epsilon: float


class WindowRows(NamedTuple):
    """A window's rows: what each token is, where it stands and where its key and value go.

    Attributes:
        live: how many there are; the rest are padding, and come last.
    """

    tokens: Int[Array, " rows"]
    positions: Int[Array, " rows"]
    pages: Int[Array, " rows"]
    offsets: Int[Array, " rows"]
    live: Int32[Array, ""]


class Block(nnx.Module):
    """One layer: attention, then a gated feed-forward, both on normalised input and added back."""

    def __init__(
        self,
        *,
        attention_norm: RMSNorm,
        qkv: Linear,
        output: Linear,
        feed_forward_norm: RMSNorm,
        gate_up: Linear,
        down: Linear,
        kv_heads: int,
        head_dim: int,
        kernels: Kernels,
    ) -> None:
        self.attention_norm = attention_norm
        self.qkv = qkv
        self.output = output
        self.feed_forward_norm = feed_forward_norm
        self.gate_up = gate_up
        self.down = down
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.kernels = kernels

    def __call__(
        self,
        x: Float32[Array, "rows width"],
        *,
        rows: WindowRows,
        tiles: Tiles,
        cache: Array,
        cosine: Float32[Array, "rows half"],
        sine: Float32[Array, "rows half"],
    ) -> tuple[Float32[Array, "rows width"], Array]:
        """Returns the residual stream after the layer, and the layer's cache with the rows written."""
        qkv = self.qkv(self.attention_norm(x), live=rows.live).reshape(x.shape[0], -1, self.head_dim)
        queries, keys, values = jnp.split(qkv, [-2 * self.kv_heads, -self.kv_heads], axis=1)
        keys = rotate(keys, cosine=cosine, sine=sine)
        cache = write(cache, keys=keys, values=values, pages=rows.pages, offsets=rows.offsets)
        queries = rotate(queries, cosine=cosine, sine=sine)
        x = x + self.output(attend(queries, cache=cache, tiles=tiles, kernels=self.kernels), live=rows.live)
        gate, up = jnp.split(self.gate_up(self.feed_forward_norm(x), live=rows.live), 2, axis=-1)
        return x + self.down(jax.nn.silu(gate) * up, live=rows.live), cache


class Llama(nnx.Module):
    """The whole network. `hidden` runs the layers; `logits` is the head, for the rows that need one."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        embedding: Embedding,
        blocks: list[Block],
        norm: RMSNorm,
        head: Linear,
        rope_factors: Float32[np.ndarray, " half"],
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.blocks = nnx.List(blocks)
        self.norm = norm
        self.head = head
        half = np.arange(0, config.rope_dims, 2, dtype=np.float64) / config.rope_dims
        frequencies = config.rope_base**-half / rope_factors.astype(np.float64)
        self.frequencies = nnx.Variable(jnp.asarray(frequencies, jnp.float32))

    def hidden(self, rows: WindowRows, *, tiles: Tiles, cache: Cache) -> tuple[Float32[Array, "rows width"], Cache]:
        """The residual stream after the last layer, before the final norm, and the cache with the rows written."""
        # The barrier keeps XLA from computing the angles anew inside every layer's fusions.
        cosine, sine = jax.lax.optimization_barrier(rope_angles(rows.positions, frequencies=self.frequencies[...]))
        x = self.embedding(rows.tokens)
        written = []
        for block, layer_cache in zip(self.blocks, cache, strict=True):
            x, layer_cache = block(x, rows=rows, tiles=tiles, cache=layer_cache, cosine=cosine, sine=sine)
            written.append(layer_cache)
        return x, tuple(written)

    def logits(
        self, hidden: Float32[Array, "rows width"], *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows vocabulary"]:
        """Scores of every token of the vocabulary, for each of the first `live` rows given; `None` means all."""
        return self.head(self.norm(hidden), live=live)
