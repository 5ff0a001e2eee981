"""A gated delta net of random weights, run window by window, as the tests of its kinds want it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from deployments.lm.attention import Tiles
from deployments.lm.cache.layout import CacheShape, Recurrent, RecurrentState
from deployments.lm.decoder import Mixed, Window, WindowRows
from deployments.lm.delta import GatedDeltaNet
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import RMSNorm
from deployments.lm.quant.linear import FloatLinear
from deployments.lm.recurrence import SEGMENT_FIELDS, Recurrence

WIDTH = 64
# Heads that are no power of two, of values of another width than the keys'.
SMALL = Recurrent(heads=6, key_dim=16, value_dim=24, channels=2 * 3 * 16 + 6 * 24, taps=4)
LARGE = Recurrent(heads=16, key_dim=128, value_dim=128, channels=3 * 16 * 128, taps=4)
STATES, SLOT, EMPTY, SEGMENTS = 4, 1, 3, 7


@dataclass(kw_only=True)
class Weights:
    """As published: each projection for itself."""

    shape: Recurrent
    key_heads: int
    random: np.random.Generator

    def __post_init__(self) -> None:
        shape, values = self.shape, self.shape.heads * self.shape.value_dim
        self.inputs = self._normal(shape.channels + values, WIDTH)
        self.gates = self._normal(2 * shape.heads, WIDTH)
        self.rates = -np.exp(self.random.uniform(-1, 1, shape.heads)).astype(np.float32)
        self.bias = self._normal(shape.heads)
        self.kernel = self._normal(shape.taps, shape.channels)
        self.norm = self._normal(shape.value_dim) + 1
        self.output = self._normal(WIDTH, values)

    def _normal(self, *sizes: int) -> np.ndarray:
        drawn: np.ndarray = self.random.standard_normal(sizes) * sizes[-1] ** -0.5
        return drawn.astype(np.float32)

    def layer(self, *, kernels: Kernels = Kernels.XLA) -> GatedDeltaNet:
        return GatedDeltaNet(
            inputs=FloatLinear(jnp.asarray(self.inputs)),
            gates=FloatLinear(jnp.asarray(self.gates)),
            rates=jnp.asarray(self.rates),
            bias=jnp.asarray(self.bias),
            kernel=jnp.asarray(self.kernel),
            norm=RMSNorm(jnp.asarray(self.norm), epsilon=1e-6),
            output=FloatLinear(jnp.asarray(self.output)),
            key_heads=self.key_heads,
            shape=self.shape,
            kernels=kernels,
        )


def weights(shape: Recurrent = SMALL, *, key_heads: int = 3) -> Weights:
    return Weights(shape=shape, key_heads=key_heads, random=np.random.default_rng(5))


def windowed(layer: GatedDeltaNet, /, *, x: jax.Array, cache: RecurrentState, numbers: jax.Array) -> Mixed:
    """The layer on one window; `numbers` as `Recurrence.unpacked` takes them."""
    rows = x.shape[0]
    none = jnp.zeros(rows, jnp.int32)
    tiles = Tiles(rows=none[:, None], positions=none[:, None], pages=none[:, None], lane_of_row=none)
    window = Window(
        rows=WindowRows(
            tokens=none,
            positions=none,
            pages=none,
            offsets=none,
            live=jnp.int32(rows),
            recurrence=Recurrence.unpacked(numbers, rows=rows),
        ),
        tiles=tiles,
        angles=(),
    )
    return layer(x, window=window, cache=cache)


# One for all runners: compiling it takes longer than running it.
@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _run(graph: Any, state: Any, x: Any, cache: Any, numbers: Any) -> Any:
    return windowed(nnx.merge(graph, state), x=x, cache=cache, numbers=numbers)


class Runner:
    """The layer, compiled for windows of some size; `kept` rows of drafts are kept between them."""

    def __init__(
        self, of: Weights, *, rows: int, kept: int = 7, states: int = STATES, kernels: Kernels = Kernels.XLA
    ) -> None:
        self.rows, self.kept = rows, kept
        size = CacheShape(layout=(of.shape,), pages=1, page_size=1, states=states, pending=kept + 1)
        (self.cache,) = size.zeros(jnp.dtype(jnp.float32))
        self._graph, self._state = nnx.split(of.layer(kernels=kernels))

    def __call__(self, x: np.ndarray, *, begins: bool, replays: int = 0, drafts: int = 0) -> np.ndarray:
        """What the rows gave; those kept of the last window's drafts are run first."""
        waiting, stays = self.kept + 1, len(x) - drafts
        segments = [
            (0, replays, SLOT, SLOT),
            (waiting, stays, EMPTY if begins else SLOT, SLOT),
            (waiting + stays, drafts, SLOT, 0),
        ]
        table = np.zeros((SEGMENTS, SEGMENT_FIELDS), np.int32)
        real = [one for one in segments if one[1]]
        table[: len(real)] = real
        places = np.full(self.rows, self.kept, np.int32)
        places[stays : len(x)] = np.arange(drafts)
        padded = np.zeros((self.rows, x.shape[1]), np.float32)
        padded[: len(x)] = x
        numbers = np.concatenate([table.reshape(-1), places])
        out, self.cache = _run(self._graph, self._state, padded, self.cache, numbers)
        return np.asarray(out)[: len(x)]

    @property
    def temporaries(self) -> int:
        """Bytes that a window takes beside weights and cache."""
        x, numbers = np.zeros((self.rows, WIDTH), np.float32), np.zeros(SEGMENTS * SEGMENT_FIELDS + self.rows, np.int32)
        counted = _run.lower(self._graph, self._state, x, self.cache, numbers).compile().memory_analysis()
        assert counted is not None
        return int(counted.temp_size_in_bytes)

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        cache: RecurrentState = self.cache
        return np.asarray(cache.matrices[SLOT]), np.asarray(cache.history[SLOT])


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((count, WIDTH)).astype(np.float32)
