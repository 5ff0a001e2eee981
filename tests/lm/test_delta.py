"""The gated delta net against its definition, and bit by bit against itself however its rows are cut into windows.

`pytest -s -m slow tests/lm/test_delta.py` prints what a row costs in a layer as large as Qwen3.5-0.8B's.
"""

import time

import numpy as np
import pytest

from deployments.lm.kernels.choice import Kernels
from tests.lm.deltas import LARGE, Runner, Weights, rows, weights

_INTERPRETED = pytest.param(Kernels.PALLAS_INTERPRETED, marks=pytest.mark.slow)
EITHER = pytest.mark.parametrize("kernels", [Kernels.XLA, _INTERPRETED])


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


@EITHER
def test_it_is_what_it_is_defined_to_be(kernels: Kernels) -> None:
    of, x = weights(), rows(64)
    np.testing.assert_allclose(Runner(of, rows=64, kernels=kernels)(x, begins=True), defined(x, of=of), atol=2e-5)


@EITHER
@pytest.mark.parametrize("size", [8, 16, 32])
def test_no_bit_depends_on_how_rows_are_cut_into_windows(size: int, kernels: Kernels) -> None:
    of, x = weights(), rows(64)
    whole = Runner(of, rows=64, kernels=kernels)
    wanted = whole(x, begins=True)

    random, runner, found = np.random.default_rng(size), Runner(of, rows=size, kernels=kernels), []
    begun = 0
    while begun < len(x):
        count = int(random.integers(1, size + 1))
        found.append(runner(x[begun : begun + count], begins=begun == 0))
        begun += count

    np.testing.assert_array_equal(np.concatenate(found), wanted)
    for left, right in zip(runner.state(), whole.state(), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("kernels", [Kernels.XLA, Kernels.PALLAS_INTERPRETED])
def test_after_any_number_of_accepted_drafts_the_state_is_the_one_of_plain_rows(kernels: Kernels) -> None:
    """Each window brings drafts of which the first ones are right; outputs and states are those of single rows."""
    of, x = weights(), rows(48)
    plain, drafting = (Runner(of, rows=8, kernels=kernels) for _ in range(2))
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


@EITHER
def test_nothing_of_a_neighbour_enters_a_state(kernels: Kernels) -> None:
    """Not even what is no number, in drafts that are refused."""
    of, x = weights(), rows(16)
    clean, beside = (Runner(of, rows=16, kernels=kernels) for _ in range(2))
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
