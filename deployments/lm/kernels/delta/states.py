"""Brings the states of a window's runs from HBM and takes new ones back, within a Pallas kernel for TPUs.

Three buffers take turns: one is worked on, one may be on its way out, and one is for the next run's state, which comes
meanwhile. Where a state leaves in the middle of a run, the rows after it go on in the third buffer. Knows no rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from deployments.lm.kernels.delta.parts import Copy, Part

BUFFERS = 3
NONE = -1
"""Of the buffers, where none is meant."""


class StateParts(NamedTuple):
    """All states, in HBM, or those in the buffers.

    Attributes:
        matrices: `[states, heads, key_dim, value_dim]`.
        history: `[states, past, channels]`.
    """

    matrices: Part
    history: Part


@dataclass(frozen=True, kw_only=True)
class States:
    """Which state is where is for the caller to remember, as numbers of buffers.

    Attributes:
        stored, held: in HBM and in the buffers.
        come, gone: semaphores for each of the two arrays.
    """

    stored: StateParts
    held: StateParts
    come: jax.Ref
    gone: jax.Ref

    def fetch(self, state: Array, /, *, buffer: Array) -> None:
        """Has a state come; `arrive` waits for it."""
        for copy in self._coming(state, buffer=buffer):
            copy.start()

    def arrive(self, state: Array, /, *, buffer: Array) -> None:
        """Waits until a state that was fetched is there."""
        for copy in self._coming(state, buffer=buffer):
            copy.wait()

    def leave(self, buffer: Array, /, *, state: Array, leaving: Array) -> None:
        """Sends what a buffer holds to its state, after what is still on its way out of `leaving`."""
        self.settle(leaving)
        for copy in self._going(buffer, state=state):
            copy.start()

    def settle(self, leaving: Array, /) -> None:
        """Waits until a buffer has been sent, if one is on its way."""

        @pl.when(leaving != NONE)
        def _() -> None:
            # Where to is of no account: what is waited for is as many bytes.
            for copy in self._going(jnp.maximum(leaving, 0), state=jnp.int32(0)):
                copy.wait()

    def _coming(self, state: Array, *, buffer: Array) -> tuple[Copy, ...]:
        return tuple(
            pltpu.make_async_copy(stored.at[state], held.at[buffer], self.come.at[place])
            for place, (stored, held) in enumerate(zip(self.stored, self.held, strict=True))
        )

    def _going(self, buffer: Array, *, state: Array) -> tuple[Copy, ...]:
        return tuple(
            pltpu.make_async_copy(held.at[buffer], stored.at[state], self.gone.at[place])
            for place, (stored, held) in enumerate(zip(self.stored, self.held, strict=True))
        )
