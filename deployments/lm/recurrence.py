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
from jaxtyping import Array, Float32, Int, Int32

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
    segments = recurrence.segments
    waiting = jax.tree.leaves(pending)[0].shape[0]
    count = jax.tree.leaves(rows)[0].shape[0]

    def segment(index: Array, carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
        states, out = carry
        first, length, before, after = (segments[index, field] for field in range(SEGMENT_FIELDS))

        def row(number: Array, carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
            state, out = carry
            place = first + number
            is_new = place >= waiting
            own = jax.tree.map(
                lambda new, old: jnp.where(is_new, _at(new, place - waiting), _at(old, place)), rows, pending
            )
            # Behind barriers nothing of a row's arithmetic is compiled together with arrays of the window's size.
            state, given = step(state, jax.lax.optimization_barrier(own))
            given = jax.lax.optimization_barrier(given)
            # What a row gave that is run once more went on long ago.
            target = jnp.where(is_new, place - waiting, count)
            return state, jax.lax.dynamic_update_index_in_dim(out, given, target, axis=0)

        state = jax.tree.map(lambda array: _at(array, before), states)
        state, out = jax.lax.fori_loop(0, length, row, (state, out))
        return jax.tree.map(
            lambda array, one: jax.lax.dynamic_update_index_in_dim(array, one, after, axis=0), states, state
        ), out

    live = jnp.sum(segments[:, 1] > 0, dtype=jnp.int32)
    empty = jnp.zeros((count + 1, *like.shape), like.dtype)
    states, out = jax.lax.fori_loop(0, live, segment, (states, empty))
    return Recurred(out[:count], states)


def _at(array: Array, index: Array) -> Array:
    # Clamped where it is out of range, as for the half of the two that is not used.
    one: Array = jax.lax.dynamic_index_in_dim(array, jnp.maximum(index, 0), axis=0, keepdims=False)
    return one
