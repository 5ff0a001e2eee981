"""A window's segments run through a recurrence one can compute by hand: a state that digests numbers in order."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from deployments.lm.cache.layout import SCRATCH_STATE
from deployments.lm.recurrence import SEGMENT_FIELDS, Recurred, Recurrence, recur
from tests.lm.segments import STATES, WAITING, random_segments

LIKE = jax.ShapeDtypeStruct((1, 2), jnp.float32)


class Sums(NamedTuple):
    """How many numbers there were, and what they came to."""

    seen: Array
    digest: Array


def step(state: Sums, row: Array) -> tuple[Sums, Array]:
    digest = (state.digest * 31 + row) % 997
    return Sums(state.seen + 1, digest), jnp.stack([state.seen, digest])[None]


def digest(numbers: Sequence[float]) -> tuple[float, float]:
    count, so_far = 0.0, 0.0
    for number in numbers:
        count, so_far = count + 1, (so_far * 31 + number) % 997
    return count, so_far


def run(
    states: Sums, *, pending: Sequence[float], rows: Sequence[float], segments: Sequence[tuple[int, int, int, int]]
) -> tuple[np.ndarray, Sums]:
    table = np.zeros((12, SEGMENT_FIELDS), np.int32)
    table[: len(segments)] = np.asarray(segments, np.int32).reshape(-1, SEGMENT_FIELDS)
    numbers = np.concatenate([table.reshape(-1), np.zeros(len(rows), np.int32)])
    done = _run(states, jnp.asarray(pending, jnp.float32), jnp.asarray(rows, jnp.float32), jnp.asarray(numbers))
    return np.asarray(done.out)[:, 0], done.states


@jax.jit
def _run(states: Sums, pending: Array, rows: Array, numbers: Array) -> Recurred:
    recurrence = Recurrence.unpacked(numbers, rows=rows.shape[0])
    return recur(step, states=states, pending=pending, rows=rows, recurrence=recurrence, like=LIKE)


def empty() -> Sums:
    return Sums(jnp.zeros(STATES), jnp.zeros(STATES))


def test_segments_are_run_in_order_each_through_its_own_states() -> None:
    """Two pending rows, then two of the window's into state 2; two more on a copy; and one of another sequence."""
    rows = [11.0, 12.0, 13.0, 14.0, 15.0, 99.0]
    out, states = run(
        empty(),
        pending=[1.0, 2.0, 3.0, 4.0, 0.0],
        rows=rows,
        segments=[(1, 2, 5, 2), (WAITING, 2, 2, 2), (WAITING + 2, 2, 2, 0), (WAITING + 4, 1, 5, 3)],
    )

    assert tuple(np.asarray(states.digest)[[2, 3]]) == (digest([2, 3, 11, 12])[1], digest([15])[1])
    assert np.asarray(states.seen)[5] == 0
    wanted = [digest([2, 3, 11])[1], digest([2, 3, 11, 12])[1], digest([2, 3, 11, 12, 13])[1]]
    assert out[:3, 1].tolist() == wanted
    assert out[4, 1] == digest([15])[1]
    assert out[5].tolist() == [0, 0]


def test_a_window_without_rows_changes_nothing() -> None:
    states = Sums(jnp.arange(STATES, dtype=jnp.float32), jnp.ones(STATES))
    out, after = run(states, pending=[0.0] * WAITING, rows=[1.0, 2.0], segments=[])

    assert not out.any()
    for left, right in zip(states, after, strict=True):
        np.testing.assert_array_equal(left, right)


def test_however_a_sequence_is_cut_its_rows_are_the_same() -> None:
    """Also where a state is left behind on the way, and another sequence goes on from it."""
    random = Random(1)
    numbers = [float(random.randrange(1000)) for _ in range(40)]
    for _ in range(10):
        states, begun, read = empty(), 0, 5
        while begun < len(numbers):
            count = min(random.randint(1, 8), len(numbers) - begun)
            rows = [*numbers[begun : begun + count], *([7.0] * (8 - count))]
            write = random.choice([1, 2, 3])
            out, states = run(states, pending=[0.0] * WAITING, rows=rows, segments=[(WAITING, count, read, write)])
            wanted = [digest(numbers[: begun + place + 1])[1] for place in range(count)]
            assert out[:count, 1].tolist() == wanted
            begun, read = begun + count, write


def test_segments_that_follow_on_are_the_same_as_if_each_had_read_and_written() -> None:
    """Against running them one by one; the scratch state alone is not written, since nobody reads it."""
    random = Random(2)
    for _ in range(40):
        pending = [float(random.randrange(1000)) for _ in range(WAITING)]
        rows = [float(random.randrange(1000)) for _ in range(8)]
        segments = random_segments(random)
        begun = Sums(jnp.arange(STATES, dtype=jnp.float32), jnp.arange(STATES, dtype=jnp.float32) * 100)
        out, after = run(begun, pending=pending, rows=rows, segments=segments)

        states, wanted = [(float(number), number * 100.0) for number in range(STATES)], np.zeros((8, 2))
        for first, count, read, write in segments:
            state = states[read]
            for place in range(first, first + count):
                row = (pending + rows)[place]
                if place >= WAITING:
                    wanted[place - WAITING] = state[0], (state[1] * 31 + row) % 997
                state = state[0] + 1, (state[1] * 31 + row) % 997
            if write != SCRATCH_STATE:
                states[write] = state
        np.testing.assert_array_equal(np.stack([after.seen, after.digest], axis=1), states)
        np.testing.assert_array_equal(out, wanted)
