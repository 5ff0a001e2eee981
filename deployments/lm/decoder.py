"""The network every family is made of: an embedding, blocks one after another, a norm and a head, over one window.

A block mixes rows through its slot's past (attention, or a recurrence), then works on each row alone (a feed-forward,
dense or of experts). Families differ in how they fill these places. Knows no scheduler, no sampler, no checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32, Float64, Int, Int32

from deployments.lm.attention import Tiles
from deployments.lm.cache.layout import Cache, Layout, Recurrent
from deployments.lm.layers import Embedding, RMSNorm, rope_angles
from deployments.lm.mesh import first_of, gathered
from deployments.lm.quant.linear import Linear
from deployments.lm.recurrence import Recurrence
from deployments.lm.sums import rounded


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What others need to know of a network.

    Attributes:
        context: the most positions it was made for.
        layout: what its layers keep between windows; blocks name their entry by its number.
        embedding_scale: what embeddings are multiplied by.
        logit_scale: what the head's scores are multiplied by.
        softcap: scores are bent to stay within it; `None` leaves them.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    layout: Layout
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers keep a state per sequence."""
        return any(isinstance(entry, Recurrent) for entry in self.layout)


class WindowRows(NamedTuple):
    """A window's rows: what each token is, where it stands and where its key and value go.

    Attributes:
        live: how many there are; the rest are padding, and come last.
        recurrence: how they run through recurrent layers; `None` in networks without.
        in_loop: whether the layers run in a loop on the device, as `attention.write` must know.
    """

    tokens: Int[Array, " rows"]
    positions: Int[Array, " rows"]
    pages: Int[Array, " rows"]
    offsets: Int[Array, " rows"]
    live: Int32[Array, ""]
    recurrence: Recurrence | None = None
    in_loop: bool = False


class Angles(NamedTuple):
    """Cosine and sine of each row's rotary angles."""

    cosine: Float32[Array, "rows half"]
    sine: Float32[Array, "rows half"]


class Window(NamedTuple):
    """What a layer sees of a window beside the residual stream.

    Attributes:
        angles: one per rotary table of the network.
        inputs: what each layer gets of the rows' tokens beside the stream; `None` in a network without such inputs.
    """

    rows: WindowRows
    tiles: Tiles
    angles: tuple[Angles, ...]
    inputs: Float32[Array, "rows layers inputs"] | None = None


class Mixed(NamedTuple):
    """What mixing rows through the past gave, and what the layer keeps of it."""

    out: Float32[Array, "rows width"]
    cache: Any


class Mixer(Protocol):
    """Attention or a recurrence. Returns the layer's share of the residual stream and its cache with the rows in it."""

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window, cache: Any) -> Mixed: ...


class FeedForward(Protocol):
    """A layer's work on each row alone; `live` as in `Linear`."""

    def __call__(
        self, x: Float32[Array, "rows width"], /, *, live: Int32[Array, ""]
    ) -> Float32[Array, "rows width"]: ...


class LayerInputs(Protocol):
    """What each layer gets of the rows' tokens, from these and the stream before the first layer (Gemma 4)."""

    def __call__(
        self, x: Float32[Array, "rows width"], /, *, rows: WindowRows
    ) -> Float32[Array, "rows layers inputs"]: ...


class Ending(Protocol):
    """What a layer does to the stream once both its parts are in it (Gemma 4)."""

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window) -> Float32[Array, "rows width"]: ...


class Block(nnx.Module):
    """One layer. Each norm may be absent: before a part (most families), after it (EXAONE 4), or both (Gemma).

    Args:
        entry: which entry of the cache the mixer reads and writes.
        residual_scale: what is multiplied to each part before it is added back (Granite).
    """

    def __init__(
        self,
        *,
        entry: int,
        mixer: Mixer,
        feed_forward: FeedForward,
        mixer_norm: RMSNorm | None = None,
        feed_forward_norm: RMSNorm | None = None,
        after_mixer: RMSNorm | None = None,
        after_feed_forward: RMSNorm | None = None,
        residual_scale: float = 1.0,
        ending: Ending | None = None,
    ) -> None:
        self.entry = entry
        self.mixer = mixer
        self.feed_forward = feed_forward
        self.mixer_norm = mixer_norm
        self.feed_forward_norm = feed_forward_norm
        self.after_mixer = after_mixer
        self.after_feed_forward = after_feed_forward
        self.residual_scale = residual_scale
        self.ending = ending

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window, cache: Any) -> Mixed:
        """The residual stream after the layer, and its entry of the cache with the rows written."""
        mixed, cache = self.mixer(_normed(x, norm=self.mixer_norm), window=window, cache=cache)
        x = self._add(x, part=mixed, norm=self.after_mixer)
        worked = self.feed_forward(_normed(x, norm=self.feed_forward_norm), live=window.rows.live)
        x = self._add(x, part=worked, norm=self.after_feed_forward)
        return Mixed(x if self.ending is None else self.ending(x, window=window), cache)

    def _add(self, x: Array, *, part: Array, norm: RMSNorm | None) -> Array:
        part = _normed(part, norm=norm)
        if self.residual_scale != 1.0:
            part = part * self.residual_scale
        is_product = norm is not None or self.residual_scale != 1.0
        return x + (rounded(part) if is_product else part)


class Decoder(nnx.Module):
    """The whole network. `hidden` runs the layers; `logits` is the head, for the rows that need one.

    Args:
        rotary: frequencies of each rotary table, in radians per position; attention names its table by number.

    Attributes:
        axis: the devices it is split over; `None` where this one has all of it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        embedding: Embedding,
        blocks: Sequence[Block],
        norm: RMSNorm,
        head: Linear,
        rotary: Sequence[Float64[np.ndarray, " _"]],
        inputs: LayerInputs | None = None,
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.blocks = nnx.List(blocks)
        self.norm = norm
        self.head = head
        self.inputs = inputs
        self.axis: str | None = None
        self.rotary = nnx.List([nnx.Variable(jnp.asarray(table, jnp.float32)) for table in rotary])

    def hidden(self, rows: WindowRows, *, tiles: Tiles, cache: Cache) -> tuple[Float32[Array, "rows width"], Cache]:
        """The residual stream after the last layer, before the final norm, and the cache with the rows written."""
        x = self.embedded(rows.tokens)
        inputs = None if self.inputs is None else self.inputs(x, rows=rows)
        window = Window(rows=rows, tiles=tiles, angles=self.angles(rows.positions), inputs=inputs)
        entries = list(cache)
        for block in self.blocks:
            x, entries[block.entry] = block(x, window=window, cache=entries[block.entry])
        return x, tuple(entries)

    def embedded(self, tokens: Int[Array, " rows"], /) -> Float32[Array, "rows width"]:
        """The residual stream before the first layer."""
        x = self.embedding(tokens)
        return x if self.config.embedding_scale == 1.0 else rounded(x * self.config.embedding_scale)

    def angles(self, positions: Int[Array, " rows"], /) -> tuple[Angles, ...]:
        """Every rotary table's angles."""
        # The barrier keeps XLA from computing the angles anew inside every layer's fusions.
        return tuple(
            Angles(*jax.lax.optimization_barrier(rope_angles(positions, frequencies=table[...])))
            for table in self.rotary
        )

    def logits(
        self, hidden: Float32[Array, "rows width"], *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows vocabulary"]:
        """Scores of every token of the vocabulary, for each of the first `live` rows given; `None` means all."""
        return gathered(self.scores(hidden, live=live), axis=self.axis)[:, : self.config.vocabulary]

    def scores(
        self, hidden: Float32[Array, "rows width"], *, live: Int32[Array, ""] | None = None
    ) -> Float32[Array, "rows tokens"]:
        """Those that this device computes; of tokens that only fill its share up, minus infinity."""
        scores = self.head(self.norm(hidden), live=live)
        if self.config.logit_scale != 1.0:
            scores = scores * self.config.logit_scale
        if self.config.softcap is not None:
            scores = jnp.tanh(scores * (1.0 / self.config.softcap)) * self.config.softcap
        if self.axis is None:
            return scores
        tokens = first_of(scores.shape[-1], axis=self.axis) + jnp.arange(scores.shape[-1])
        return jnp.where(tokens < self.config.vocabulary, scores, -jnp.inf)


def _normed(x: Array, *, norm: RMSNorm | None) -> Array:
    return x if norm is None else norm(x)
