"""The Pallas recurrence, interpreted: against the plain path on random windows, bit by bit, and on a simulated chip.

`tests/lm/test_delta.py` has what any kind of it must keep to, over whole sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from deployments.lm.cache.layout import SCRATCH_STATE, CacheShape, Recurrent, RecurrentState
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Mixed
from deployments.lm.delta import GatedDeltaNet
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.delta import pallas
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.lm.recurrence import SEGMENT_FIELDS, Recurred, runs_of
from tests.lm import deltas
from tests.lm.segments import EMPTY, ROWS, STATES, WAITING, Segment, random_segments

SEGMENTS = 12

type Pair = tuple[Any, ...]


def recurrent(*, heads: int, key_heads: int, key_dim: int, value_dim: int, taps: int = 4) -> Recurrent:
    channels = 2 * key_heads * key_dim + heads * value_dim
    return Recurrent(heads=heads, key_dim=key_dim, value_dim=value_dim, channels=channels, taps=taps)


SMALL = recurrent(heads=6, key_heads=3, key_dim=16, value_dim=24)
SHAPES = (
    recurrent(heads=4, key_heads=4, key_dim=8, value_dim=8, taps=2),
    recurrent(heads=5, key_heads=1, key_dim=12, value_dim=4, taps=3),
    recurrent(heads=6, key_heads=2, key_dim=128, value_dim=128),
)
# Two sequences: rows run again, rows that stay and leave their state on the way and at the end, drafts; and one that
# begins from the state left on the way, which was written just before.
RAGGED: tuple[Segment, ...] = (
    (1, 2, EMPTY, 2),
    (WAITING, 2, 2, 4),
    (WAITING + 2, 1, 4, 2),
    (WAITING + 3, 2, 2, SCRATCH_STATE),
    (0, 1, 4, 3),
    (WAITING + 5, 1, 3, 3),
    (WAITING + 6, 1, 3, SCRATCH_STATE),
)


# A run that writes nothing, between two that do: its state leaves no time for the one before it to go.
UNWRITTEN: tuple[Segment, ...] = (
    (WAITING, 1, 1, 1),
    (WAITING + 1, 1, 2, SCRATCH_STATE),
    (WAITING + 2, 1, 3, 3),
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a window of a layer is run on, beside its segments; `numbers` are the layer's."""

    states: Pair
    pending: Pair
    rows: Pair
    numbers: pallas.Numbers


def given(shape: Recurrent = SMALL, *, rows: int = ROWS) -> Given:
    random = np.random.default_rng(1)

    def drawn(*sizes: int) -> np.ndarray:
        return random.standard_normal(sizes).astype(np.float32)

    heads = shape.heads
    numbers: Any = (drawn(shape.taps, shape.channels), -(drawn(heads) ** 2), drawn(heads), np.arange(heads))
    return Given(
        states=(drawn(STATES, heads, shape.key_dim, shape.value_dim), drawn(STATES, shape.taps - 1, shape.channels)),
        pending=(drawn(WAITING, shape.channels), drawn(WAITING, 2, heads)),
        rows=(drawn(rows, shape.channels), drawn(rows, 2, heads)),
        numbers=pallas.Numbers(*numbers),
    )


def table_of(segments: Sequence[Segment]) -> np.ndarray:
    table = np.zeros((SEGMENTS, SEGMENT_FIELDS), np.int32)
    table[: len(segments)] = np.asarray(segments, np.int32).reshape(-1, SEGMENT_FIELDS)
    return table


@partial(jax.jit, static_argnames="interpret")
def recurred(states: Any, pending: Any, rows: Any, numbers: Any, segments: Any, *, interpret: bool) -> Recurred:
    runs = runs_of(segments, steps=len(pending[0]) + len(rows[0]))
    return pallas.recur(states, pending=pending, rows=rows, runs=runs, numbers=numbers, interpret=interpret)


def run(one: Given, segments: Sequence[Segment] = RAGGED, *, interpret: bool = True) -> list[np.ndarray]:
    """What rows gave, then the states."""
    done = recurred(one.states, one.pending, one.rows, one.numbers, table_of(segments), interpret=interpret)
    return [np.asarray(array) for array in jax.tree.leaves(done)]


def same_bits(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(left, right)


class Layers:
    """A layer with the kernel and without, on the same windows."""

    def __init__(self, shape: Recurrent, *, key_heads: int) -> None:
        of = deltas.weights(shape, key_heads=key_heads)
        self._parts = {kernels: nnx.split(of.layer(kernels=kernels)) for kernels in KINDS}
        self._run = jax.jit(self._windowed, static_argnums=0)
        random = np.random.default_rng(4)
        empty = CacheShape(layout=(shape,), pages=1, page_size=1, states=STATES, pending=WAITING)
        (zeros,) = empty.zeros(jnp.dtype(jnp.float32))
        self.cache = RecurrentState(*(random.standard_normal(one.shape).astype(np.float32) for one in zeros))
        self.x = random.standard_normal((ROWS, deltas.WIDTH)).astype(np.float32)

    def check(self, segments: Sequence[Segment]) -> None:
        """Rows of padding give zero, and states that nobody writes are as they were."""
        numbers = np.concatenate([table_of(segments).reshape(-1), np.arange(ROWS, dtype=np.int32) % WAITING])
        plain, kernel = (self._run(kernels, self._parts[kernels][1], self.cache, numbers) for kernels in KINDS)
        for wanted, found in zip(jax.tree.leaves(plain), jax.tree.leaves(kernel), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
        seen = {row - WAITING for first, count, _, _ in segments for row in range(first, first + count)}
        assert not np.asarray(kernel.out)[[row for row in range(ROWS) if row not in seen]].any()
        kept = sorted(set(range(STATES)) - {write for _, _, _, write in segments if write != SCRATCH_STATE})
        same_bits([np.asarray(kernel.cache.matrices)[kept]], [np.asarray(self.cache.matrices)[kept]])

    def _windowed(self, kernels: Kernels, state: Any, cache: Any, numbers: Any) -> Mixed:
        return deltas.windowed(
            nnx.merge(self._parts[kernels][0], state), x=jnp.asarray(self.x), cache=cache, numbers=numbers
        )


KINDS = (Kernels.XLA, Kernels.PALLAS_INTERPRETED)


def test_random_windows_are_as_on_the_plain_path() -> None:
    layers, random = Layers(SMALL, key_heads=3), Random(6)
    for segments in [RAGGED, (), *(random_segments(random) for _ in range(40))]:
        layers.check(segments)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers_of_other_shapes(shape: Recurrent) -> None:
    key_heads = (shape.channels - shape.heads * shape.value_dim) // shape.key_dim // 2
    layers, random = Layers(shape, key_heads=key_heads), Random(7)
    for segments in [RAGGED, *(random_segments(random) for _ in range(5))]:
        layers.check(segments)


def test_a_row_has_the_same_bits_however_its_run_is_cut() -> None:
    """In one run, in one that leaves states on the way, and in a window for each piece."""
    one = given()
    together = run(one, [(WAITING, ROWS, EMPTY, 2)])
    pieces = [(WAITING, 3, EMPTY, 1), (WAITING + 3, 1, 1, 3), (WAITING + 4, 3, 3, 2), (WAITING + 7, 1, 2, 2)]
    apart = run(one, pieces)
    same_bits([apart[0], apart[1][2], apart[2][2]], [together[0], together[1][2], together[2][2]])

    given_by_row, states = [], list(one.states)
    for first, count, read, write in pieces:
        out, *states = run(replace(one, states=tuple(states)), [(first, count, read, write)])
        given_by_row.append(out[first - WAITING : first - WAITING + count])
    same_bits([np.concatenate(given_by_row), *states], [apart[0], *apart[1:]])


@pytest.mark.slow
def test_a_row_has_the_same_bits_in_a_larger_window_after_rows_of_padding() -> None:
    one = given()
    together = run(one, [(WAITING, ROWS, EMPTY, 2)])
    padded = tuple(np.concatenate([np.full_like(part, np.nan), part]) for part in one.rows)
    wide = run(replace(one, rows=padded), [(WAITING + ROWS, ROWS, EMPTY, 2)])
    same_bits([wide[0][ROWS:], *wide[1:]], together)
    assert not wide[0][:ROWS].any()


def test_a_row_that_is_run_again_has_the_bits_it_had_as_a_draft() -> None:
    one = given()
    first = run(one, [(WAITING, 3, EMPTY, 2), (WAITING + 3, 4, 2, SCRATCH_STATE)])
    kept = tuple(np.concatenate([part[3:7], part[:1]]) for part in one.rows)
    fresh = tuple(np.concatenate([part[7:], part[:7]]) for part in one.rows)
    states = (first[1], first[2])
    again = run(replace(one, states=states, pending=kept, rows=fresh), [(0, 4, 2, 2), (WAITING, 1, 2, 2)])

    plain = run(one, [(WAITING, ROWS, EMPTY, 2)])
    same_bits([first[0][:7], again[0][0]], [plain[0][:7], plain[0][7]])
    same_bits([again[1][2], again[2][2]], [plain[1][2], plain[2][2]])


def test_heads_alone_have_the_bits_they_have_among_others() -> None:
    """On several devices each has some of the heads, and the gates of all."""
    one, each, key_head = given(), 2, 1
    whole = run(one)
    width = 3 * SMALL.key_dim
    values = 2 * width + each * key_head * SMALL.value_dim + np.arange(each * SMALL.value_dim)
    keys = key_head * SMALL.key_dim + np.arange(SMALL.key_dim)
    channels, heads = np.concatenate([keys, width + keys, values]), slice(each * key_head, each * key_head + each)
    alone = Given(
        states=(one.states[0][:, heads], one.states[1][:, :, channels]),
        pending=(one.pending[0][:, channels], one.pending[1]),
        rows=(one.rows[0][:, channels], one.rows[1]),
        numbers=one.numbers._replace(kernel=one.numbers.kernel[:, channels], own=one.numbers.own[heads]),
    )
    same_bits(run(alone), [whole[0][:, heads], whole[1][:, heads], whole[2][:, :, channels]])


@pytest.mark.parametrize("dma", ["on_wait", pytest.param("eager", marks=pytest.mark.slow)])
def test_on_a_simulated_chip_copies_do_not_race(dma: Literal["on_wait", "eager"]) -> None:
    """Memory that nobody wrote holds no numbers there, and a copy is made when it is waited for, or at once."""
    one, random = given(SHAPES[0]), Random(5)
    simulated = pltpu.InterpretParams(detect_races=True, dma_execution_mode=dma, uninitialized_memory="nan")
    for segments in (RAGGED, UNWRITTEN, *(random_segments(random) for _ in range(3 if dma == "eager" else 0))):
        with pltpu.force_tpu_interpret_mode(simulated):
            found = run(one, segments, interpret=False)
        same_bits(found, run(one, segments))


def test_layers_it_cannot_serve_are_left_to_the_plain_path() -> None:
    real = recurrent(heads=48, key_heads=16, key_dim=128, value_dim=128)
    assert pallas.serves(real)
    assert not pallas.serves(replace(real, key_dim=96))
    assert not pallas.serves(replace(real, value_dim=64))
    assert not pallas.serves(replace(real, heads=256))
    few = Recurrent(heads=2, key_dim=1024, value_dim=1024, channels=4 * 1024 + 2 * 1024, taps=4)
    assert not pallas.serves(few)
    assert pallas.serves(replace(few, key_dim=512, channels=4 * 512 + 2 * 1024))
    of, x = deltas.weights(), deltas.rows(ROWS)
    plain, left = (deltas.Runner(of, rows=ROWS, kernels=kernels) for kernels in (Kernels.XLA, Kernels.PALLAS))
    same_bits([left(x, begins=True), *left.state()], [plain(x, begins=True), *plain.state()])


def test_networks_are_built_with_it(goldens: Path) -> None:
    checkpoint = open_checkpoint(goldens / "qwen3_5")
    network = load_network(checkpoint, precision=Precision.F32, kernels=Kernels.PALLAS_INTERPRETED)
    mixers = [block.mixer for block in network.blocks if isinstance(block.mixer, GatedDeltaNet)]
    assert {mixer.kernels for mixer in mixers} == {Kernels.PALLAS_INTERPRETED}


def test_memory_traffic_is_counted() -> None:
    """Of a layer of Qwen3.8-27B: a state is 48 matrices of 64 KiB and three rows of 10240 channels."""
    real = recurrent(heads=48, key_heads=16, key_dim=128, value_dim=128)
    state, row, own = 48 * 65536 + 3 * 40960, 40960 + 2 * 48 * 4, 4 * 40960
    none = {"reads": 0, "writes": 0, "again": 0, "rows": 0, "given": 0}
    assert pallas.hbm_bytes(real, **none) == own
    assert pallas.hbm_bytes(real, **none | {"reads": 8, "writes": 3}) == own + 11 * state
    assert pallas.hbm_bytes(real, **none | {"again": 7, "rows": 5}) == own + 12 * row
    assert pallas.hbm_bytes(real, **none | {"given": 5}) == own + 5 * 48 * 512
    assert pallas.vmem_bytes(real) < 12 << 20
