"""Recurrent layers in a window: which rows run through which state, one after another. Knows no layer's arithmetic.

A row's bits must depend on its prefix alone, so rows are never grouped: one loop, whose body has the same shapes in
every window, runs them one by one. Rows that are known to stay are run into their sequence's state. Drafts are run on a
copy that is thrown away, and what went into them is kept; the next window begins by running those that were accepted
once more, through the same body and so to the same bits. So there is one state per sequence, and none to restore.

Source of the idea: ReplaySSM (Dao AI Lab), here with the raw inputs; compare llama.cpp's and vLLM's state per draft.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int, Int32

from deployments.lm.cache.layout import SCRATCH_STATE

SEGMENT_FIELDS = 4
type HostOrDevice = Array | np.ndarray
type Tree = Any
type Step = Callable[[Tree, Tree], tuple[Tree, Float32[Array, "heads width"]]]


class Recurrence(NamedTuple):
    """A window's rows as recurrent layers see them.

    Attributes:
        segments: consecutive rows of one sequence, in the order in which they are run: number of the first row, how
            many there are, the state before the first and where the one after the last goes. Row numbers count the
            pending rows first, then the window's. Padding has no rows and comes last.
        places: where each row of the window leaves what went into it, among the pending rows.
    """

    segments: Int[HostOrDevice, "segments segment_fields"]
    places: Int[HostOrDevice, " rows"]

    @classmethod
    def unpacked(cls, numbers: Int32[HostOrDevice, " numbers"], /, *, rows: int) -> "Recurrence":
        """From what is sent to the device as one array: segments, then places."""
        return cls(segments=numbers[:-rows].reshape(-1, SEGMENT_FIELDS), places=numbers[-rows:])


class Recurred(NamedTuple):
    """What each row of the window gave, zero for padding, and the states after all of them."""

    out: Float32[Array, "rows heads width"]
    states: Tree


def recur(
    step: Step,
    *,
    states: Tree,
    pending: Tree,
    rows: Tree,
    recurrence: Recurrence,
    like: jax.ShapeDtypeStruct,
) -> Recurred:
    """Runs a window's segments.

    Args:
        step: from a sequence's state and what goes into a row to the state after it and what the row gives.
        states: arrays with a state per index.
        pending, rows: arrays with what goes into a row per index; of the same kind.
        like: what one row gives.
    """
    waiting = jax.tree.leaves(pending)[0].shape[0]
    count = jax.tree.leaves(rows)[0].shape[0]
    runs = runs_of(jnp.asarray(recurrence.segments), steps=waiting + count)

    def run(index: Array, carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
        states, out = carry

        def row(number: Array, carry: tuple[Tree, Tree, Array]) -> tuple[Tree, Tree, Array]:
            states, state, out = carry
            place = runs.rows[number]
            is_new = place >= waiting
            own = jax.tree.map(
                lambda new, old: jnp.where(is_new, _at(new, place - waiting), _at(old, place)), rows, pending
            )
            # Behind barriers nothing of a row's arithmetic is compiled together with arrays of the window's size.
            state, given = step(state, jax.lax.optimization_barrier(own))
            given = jax.lax.optimization_barrier(given)
            # What a row gave that is run once more went on long ago.
            target = jnp.where(is_new, place - waiting, count)
            out = jax.lax.dynamic_update_index_in_dim(out, given, target, axis=0)
            after = runs.writes[number]
            return _once(after != SCRATCH_STATE, lambda all: _written(all, state, after), states), state, out

        state = _read(states, runs.before[index])
        states, _, out = jax.lax.fori_loop(runs.starts[index], runs.starts[index + 1], row, (states, state, out))
        return states, out

    empty = jnp.zeros((count + 1, *like.shape), like.dtype)
    states, out = jax.lax.fori_loop(0, runs.number, run, (states, empty))
    return Recurred(out[:count], states)


class Runs(NamedTuple):
    """Segments of which each begins with the state that the one before it ended with, run as one. Then a state is read
    once and written once, and one that nobody reads is not written: between a chip's memories that is most of the work.

    Attributes:
        number: how many there are.
        before: of each, the state before its first row,
        starts: and where it begins in `rows`; one more says where the last one ends.
        rows: numbers of rows in the order in which they are run,
        writes: and where the state after each one goes; nowhere if that is the scratch state.
    """

    number: Int32[Array, ""]
    before: Int32[Array, " segments"]
    starts: Int32[Array, " borders"]
    rows: Int32[Array, " steps"]
    writes: Int32[Array, " steps"]


def runs_of(segments: Int[Array, "segments segment_fields"], /, *, steps: int) -> Runs:
    """What a window's segments come to; `steps` is how many rows they can have together."""
    first, length, before, after = (segments[:, field] for field in range(SEGMENT_FIELDS))
    is_real = length > 0
    follows = is_real & (before == jnp.roll(after, 1)).at[0].set(False)
    is_written_again = jnp.roll(follows, -1).at[-1].set(False) & (jnp.roll(after, -1) == after)
    ends = jnp.cumsum(length)
    begins = is_real & ~follows
    own = jnp.nonzero(begins, size=len(segments), fill_value=len(segments) - 1)[0]
    number = jnp.arange(steps, dtype=jnp.int32)
    at = jnp.minimum(jnp.sum(number[:, None] >= ends, axis=1), len(segments) - 1)
    is_last = number == ends[at] - 1
    starts = jnp.nonzero(begins, size=len(segments) + 1, fill_value=len(segments))[0]
    return Runs(
        number=jnp.sum(begins, dtype=jnp.int32),
        before=before[own],
        starts=jnp.concatenate([jnp.zeros(1, ends.dtype), ends])[starts].astype(jnp.int32),
        rows=(first[at] + number - (ends - length)[at]).astype(jnp.int32),
        writes=jnp.where(is_last & ~is_written_again[at], after[at], SCRATCH_STATE),
    )


def _once(condition: Bool[Array, ""], change: Callable[[Tree], Tree], value: Tree) -> Tree:
    # A loop of one turn or none and not a branch, whose results XLA copies.
    return jax.lax.fori_loop(0, condition.astype(jnp.int32), lambda _, value: change(value), value)


def _read(states: Tree, index: HostOrDevice | int) -> Tree:
    return jax.tree.map(lambda array: _at(array, index), states)


def _written(states: Tree, state: Tree, index: Array) -> Tree:
    return jax.tree.map(
        lambda array, one: jax.lax.dynamic_update_index_in_dim(array, one, index, axis=0), states, state
    )


def _at(array: Array, index: HostOrDevice | int) -> Array:
    # Clamped where it is out of range, as for the half of the two that is not used.
    one: Array = jax.lax.dynamic_index_in_dim(array, jnp.maximum(index, 0), axis=0, keepdims=False)
    return one
