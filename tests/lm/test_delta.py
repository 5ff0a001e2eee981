"""The gated delta net against its definition, and bit by bit against itself however its rows are cut into windows.

`pytest -s -m slow tests/lm/test_delta.py` prints what a row costs in a layer as large as Qwen3.5-0.8B's.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from deployments.lm.attention import Tiles
from deployments.lm.cache.layout import CacheShape, Recurrent, RecurrentState
from deployments.lm.decoder import Window, WindowRows
from deployments.lm.delta import GatedDeltaNet
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

    def layer(self) -> GatedDeltaNet:
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
        )


def weights(shape: Recurrent = SMALL, *, key_heads: int = 3) -> Weights:
    return Weights(shape=shape, key_heads=key_heads, random=np.random.default_rng(5))


def defined(x: np.ndarray, *, of: Weights) -> np.ndarray:
    """The layer from its definition, in f64, all rows from the beginning."""
    shape, width = of.shape, of.key_heads * of.shape.key_dim
    x = x.astype(np.float64)
    mixed, weighing = np.split(x @ of.inputs.T, [shape.channels], axis=1)
    padded = np.concatenate([np.zeros((shape.taps - 1, shape.channels)), mixed])
    mixed = sum(padded[tap : tap + len(x)] * of.kernel[tap] for tap in range(shape.taps))
    mixed = mixed / (1 + np.exp(-mixed))
    learning, decaying = np.split(x @ of.gates.T, 2, axis=1)
    decay = np.exp(of.rates * np.log1p(np.exp(decaying + of.bias)))
    learning = 1 / (1 + np.exp(-learning))
    state = np.zeros((shape.heads, shape.key_dim, shape.value_dim))
    found = []
    for row in range(len(x)):
        queries, keys = (
            np.repeat(part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6), shape.heads // of.key_heads, axis=0)
            for part in mixed[row, : 2 * width].reshape(2, of.key_heads, shape.key_dim)
        )
        values = mixed[row, 2 * width :].reshape(shape.heads, shape.value_dim)
        state *= decay[row, :, None, None]
        error = values - np.einsum("hk,hkv->hv", keys, state)
        state += np.einsum("hk,hv->hkv", keys, learning[row, :, None] * error)
        found.append(np.einsum("hk,hkv->hv", queries, state) * shape.key_dim**-0.5)
    out = np.stack(found)
    out = out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-6) * of.norm
    weighing = weighing.reshape(out.shape)
    found_rows: np.ndarray = (out * weighing / (1 + np.exp(-weighing))).reshape(len(x), -1) @ of.output.T
    return found_rows


class Runner:
    """The layer, compiled for windows of some size; `kept` rows of drafts are kept between them."""

    def __init__(self, of: Weights, *, rows: int, kept: int = 7, states: int = STATES) -> None:
        self.rows, self.kept = rows, kept
        size = CacheShape(layout=(of.shape,), pages=1, page_size=1, states=states, pending=kept + 1)
        (self.cache,) = size.zeros(jnp.dtype(jnp.float32))
        graph, state = nnx.split(of.layer())

        def run(state: Any, x: Any, cache: Any, numbers: Any) -> Any:
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
            return nnx.merge(graph, state)(x, window=window, cache=cache)

        self._state = state
        self._run = jax.jit(run, donate_argnums=2)

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
        out, self.cache = self._run(self._state, padded, self.cache, numbers)
        return np.asarray(out)[: len(x)]

    @property
    def temporaries(self) -> int:
        """Bytes that a window takes beside weights and cache."""
        x, numbers = np.zeros((self.rows, WIDTH), np.float32), np.zeros(SEGMENTS * SEGMENT_FIELDS + self.rows, np.int32)
        counted = self._run.lower(self._state, x, self.cache, numbers).compile().memory_analysis()
        assert counted is not None
        return int(counted.temp_size_in_bytes)

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        cache: RecurrentState = self.cache
        return np.asarray(cache.matrices[SLOT]), np.asarray(cache.history[SLOT])


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((count, WIDTH)).astype(np.float32)


def test_it_is_what_it_is_defined_to_be() -> None:
    of, x = weights(), rows(64)
    np.testing.assert_allclose(Runner(of, rows=64)(x, begins=True), defined(x, of=of), atol=2e-5)


@pytest.mark.parametrize("size", [8, 16, 32])
def test_no_bit_depends_on_how_rows_are_cut_into_windows(size: int) -> None:
    of, x = weights(), rows(64)
    whole = Runner(of, rows=64)
    wanted = whole(x, begins=True)

    random, runner, found = np.random.default_rng(size), Runner(of, rows=size), []
    begun = 0
    while begun < len(x):
        count = int(random.integers(1, size + 1))
        found.append(runner(x[begun : begun + count], begins=begun == 0))
        begun += count

    np.testing.assert_array_equal(np.concatenate(found), wanted)
    for left, right in zip(runner.state(), whole.state(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_after_any_number_of_accepted_drafts_the_state_is_the_one_of_plain_rows() -> None:
    """Each window brings drafts of which the first ones are right; outputs and states are those of single rows."""
    of, x = weights(), rows(48)
    plain, drafting = Runner(of, rows=8), Runner(of, rows=8)
    wanted, states = [], []
    for row in range(len(x)):
        wanted.append(plain(x[row : row + 1], begins=row == 0)[0])
        states.append(plain.state())

    random = np.random.default_rng(3)
    at, replays, compared = 0, 0, set()
    while at < len(x):
        drafts = min(int(random.integers(0, 8)), len(x) - at - 1)
        kept = int(random.integers(0, drafts + 1))
        block = x[at : at + 1 + drafts].copy()
        block[1 + kept :] += 1
        found = drafting(block, begins=at == 0, replays=replays, drafts=drafts)
        np.testing.assert_array_equal(found[: 1 + kept], wanted[at : at + 1 + kept])
        # What is sure by now: all before the drafts.
        for left, right in zip(drafting.state(), states[at], strict=True):
            np.testing.assert_array_equal(left, right)
        at, replays = at + 1 + kept, kept
        compared.add((drafts, kept))
    assert len(compared) > 6


def test_nothing_of_a_neighbour_enters_a_state() -> None:
    """Not even what is no number, in drafts that are refused."""
    of, x = weights(), rows(16)
    clean, beside = Runner(of, rows=16), Runner(of, rows=16)
    wanted = clean(x[:8], begins=True)

    spoilt = x[:15].copy()
    spoilt[8:] = np.nan
    found = beside(spoilt, begins=True, drafts=7)
    np.testing.assert_array_equal(found[:8], wanted)
    for left, right in zip(beside.state(), clean.state(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_no_window_copies_the_states() -> None:
    """Nor the pending rows: a copy of either would be a temporary as large."""
    few, many = (Runner(weights(), rows=8, kept=kept, states=states) for kept, states in ((7, 4), (500, 500)))
    assert many.temporaries <= few.temporaries + 4096


@pytest.mark.slow
def test_what_a_row_costs() -> None:
    """A bound that only a mistake breaks, such as a copy of all states in every row."""
    of = weights(LARGE, key_heads=16)
    for size, drafts in ((8, 0), (8, 7), (128, 0)):
        runner, x = Runner(of, rows=size), rows(size)
        runner(x, begins=True, drafts=drafts)
        best = min(_timed(runner, x, drafts=drafts) for _ in range(20)) / size
        print(f"{size} rows, {drafts} of them drafts: {best * 1e6:.0f} us a row, projections included")
        assert best < 2e-3


def _timed(runner: Runner, x: np.ndarray, *, drafts: int) -> float:
    started = time.perf_counter()
    runner(x, begins=False, drafts=drafts)
    return time.perf_counter() - started
