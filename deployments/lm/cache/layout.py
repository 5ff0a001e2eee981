"""What each layer of a network keeps between windows, and how large that is.

Layers with attention keep keys and values in pages, `[pages, 2, kv_heads, page_size, head_dim]`, keys at 0 and values
at 1. Heads come before positions so that a tile's product reads a page as it lies: gathering position-major pages costs
1.3 to 1.5 times as much on CPU (docs/adr/0005). For TPUs, heads of 64 lie `[pages, 1, kv_heads, page_size, 128]`, a key
and its value side by side: `lm.attention` says why. Page 0 is the scratch page: padding rows write there and nobody
reads it.

Layers with a recurrence keep a state per sequence, and what went into the rows of the last window's drafts, until it is
known which of them stay (docs/adr/0009). State 0 is the scratch state, which stands for the states after drafts, and is
neither read nor written; the last one is the empty state, which is read at the beginning of a sequence and never
written.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32

SCRATCH_STATE = 0
# Of a TPU's vectors.
_LANES = 128

type Cache = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class KeysAndValues:
    """What a layer with attention keeps, per position."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """What a layer with a gated delta net keeps, per sequence: a matrix per head, and its convolution's last inputs.

    Attributes:
        channels: of the convolution,
        taps: and how many rows it spans, the current one included.
        gates: for how many heads gates are kept, if not for as many as there are: several devices have them all.
    """

    heads: int
    key_dim: int
    value_dim: int
    channels: int
    taps: int
    gates: int | None = None


class RecurrentState(NamedTuple):
    """A recurrent layer's entry of the cache. In f32 whatever the precision: errors of a state never leave it.

    Attributes:
        matrices, history: the states; `history` is the convolution's last inputs, oldest first.
        pending_inputs, pending_gates: what went into the rows of drafts; the last place is for rows that stay anyway.
    """

    matrices: Float32[Array, "states heads key_dim value_dim"]
    history: Float32[Array, "states past channels"]
    pending_inputs: Float32[Array, "pending channels"]
    pending_gates: Float32[Array, "pending 2 gates"]


type Layout = tuple[KeysAndValues | Recurrent, ...]


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """How large the cache is.

    Attributes:
        layout: one entry per layer that keeps something of its own.
        pages: with the scratch page.
        page_size: positions per page.
        is_abreast: keys and values of heads half as wide as a TPU's vectors lie side by side; see `lm.attention`.
        states: with the scratch state and the empty one; 0 where no layer is recurrent.
        pending: rows of drafts whose inputs are kept, with the place for rows that are no drafts.
    """

    layout: Layout
    pages: int
    page_size: int
    is_abreast: bool = False
    states: int = 0
    pending: int = 0

    def nbytes(self, dtype: jnp.dtype) -> int:
        """Bytes on the device."""
        return self.page_nbytes(dtype) * self.pages + self.state_nbytes

    def page_nbytes(self, dtype: jnp.dtype) -> int:
        """Bytes of one page, all layers."""
        paged = (layer for layer in self.layout if isinstance(layer, KeysAndValues))
        return sum(math.prod(self._pages_of(layer)[1:]) for layer in paged) * dtype.itemsize

    @property
    def state_nbytes(self) -> int:
        """Bytes of all states and pending rows."""
        states = (layer for layer in self.layout if isinstance(layer, Recurrent))
        return sum(math.prod(shape) for layer in states for shape in self._shapes_of(layer)) * 4

    def zeros(self, dtype: jnp.dtype) -> Cache:
        """A fresh cache. Zeros, not garbage: a masked value is multiplied by zero, and must be finite."""
        return tuple(
            jnp.zeros(self._pages_of(layer), dtype)
            if isinstance(layer, KeysAndValues)
            else RecurrentState(*(jnp.zeros(shape, jnp.float32) for shape in self._shapes_of(layer)))
            for layer in self.layout
        )

    def _pages_of(self, layer: KeysAndValues) -> tuple[int, int, int, int, int]:
        if self.is_abreast and layer.head_dim == _LANES // 2:
            return (self.pages, 1, layer.kv_heads, self.page_size, _LANES)
        return (self.pages, 2, layer.kv_heads, self.page_size, layer.head_dim)

    def _shapes_of(self, layer: Recurrent) -> tuple[tuple[int, ...], ...]:
        return (
            (self.states, layer.heads, layer.key_dim, layer.value_dim),
            (self.states, layer.taps - 1, layer.channels),
            (self.pending, layer.channels),
            (self.pending, 2, layer.gates or layer.heads),
        )
