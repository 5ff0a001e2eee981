"""Brings what goes into a window's rows and takes away what they give, within a Pallas kernel for TPUs.

Two buffers each take turns, by the number of the step, so that the next row comes and the last one's result goes while
one is worked on. Knows no states and no arithmetic.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from deployments.lm.kernels.delta.parts import Copy, Part

BUFFERS = 2


class RowParts(NamedTuple):
    """What goes into rows.

    Attributes:
        channels: `[rows, channels]`.
        gates: `[rows, 2, gates]`.
    """

    channels: Part
    gates: Part


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of all steps, in order.

    Attributes:
        places: of each step, its row: pending ones first, then the window's.
        steps: how many there are.
        pending, window: where rows come from,
        held: and where they come to.
        given: results in the buffers, `[2, heads, value_dim]`,
        out: and where they go, by row of the window; those of pending rows go nowhere.
        come, gone: semaphores, by buffer.
    """

    places: jax.Ref
    steps: Array
    pending: RowParts
    window: RowParts
    held: RowParts
    given: jax.Ref
    out: jax.Ref
    come: jax.Ref
    gone: jax.Ref

    def fetch(self, step: Array, /) -> None:
        """Has a step's row come, if there is such a step."""

        @pl.when(step < self.steps)
        def _() -> None:
            place, is_new = self._place(step)

            @pl.when(is_new)
            def _() -> None:
                for copy in self._coming(step, source=self.window, row=place - self._waiting):
                    copy.start()

            @pl.when(jnp.logical_not(is_new))
            def _() -> None:
                for copy in self._coming(step, source=self.pending, row=place):
                    copy.start()

    def take(self, step: Array, /) -> Array:
        """The buffer with a step's row, which is there, and for its result, which is free; the next row is coming."""
        # Where from is of no account: what is waited for is as many bytes.
        for copy in self._coming(step, source=self.window, row=jnp.int32(0)):
            copy.wait()
        self.fetch(step + 1)
        self._settle(step - BUFFERS)
        return step % BUFFERS

    def give(self, step: Array, /) -> None:
        """Sends a step's result."""
        place, is_new = self._place(step)

        @pl.when(is_new)
        def _() -> None:
            self._going(step, row=place - self._waiting).start()

    def settle(self) -> None:
        """Waits for results that are still on their way."""
        for before in range(BUFFERS, 0, -1):
            self._settle(self.steps - before)

    @property
    def _waiting(self) -> int:
        waiting: int = self.pending.channels.shape[0]
        return waiting

    def _settle(self, step: Array) -> None:
        is_sent = (step >= 0) & self._place(jnp.maximum(step, 0))[1]

        @pl.when(is_sent)
        def _() -> None:
            self._going(step, row=jnp.int32(0)).wait()

    def _place(self, step: Array) -> tuple[Array, Array]:
        place: Array = self.places[step]
        return place, place >= self._waiting

    def _coming(self, step: Array, *, source: RowParts, row: Array) -> tuple[Copy, ...]:
        buffer = step % BUFFERS
        return (
            pltpu.make_async_copy(
                source.channels.at[pl.ds(row, 1)], self.held.channels.at[buffer], self.come.at[buffer]
            ),
            pltpu.make_async_copy(source.gates.at[row], self.held.gates.at[buffer], self.come.at[buffer]),
        )

    def _going(self, step: Array, *, row: Array) -> Copy:
        buffer = step % BUFFERS
        copy: Copy = pltpu.make_async_copy(self.given.at[buffer], self.out.at[row], self.gone.at[buffer])
        return copy
