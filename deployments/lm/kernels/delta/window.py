"""A window's runs, one after another, within a Pallas kernel for TPUs: which state and which row is where, and when.

Knows no arithmetic.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from deployments.lm.cache.layout import SCRATCH_STATE
from deployments.lm.kernels.delta.parts import Part
from deployments.lm.kernels.delta.rows import RowParts, Rows
from deployments.lm.kernels.delta.states import BUFFERS, NONE, StateParts, States
from deployments.lm.kernels.delta.step import Convolved, Prepared, Step, Weights


class Tables(NamedTuple):
    """Scalars in one row each: those of `lm.recurrence.Runs`, and two more.

    Attributes:
        early: whether each run's state may be fetched before the run ahead of it is over.
        own: of each head, the number of its gate.
    """

    number: Part
    before: Part
    starts: Part
    rows: Part
    writes: Part
    early: Part
    own: Part


class Operands(NamedTuple):
    """What the kernel takes beside tables.

    Attributes:
        states: not to be touched here, since results lie in the same place.
    """

    states: StateParts
    pending: RowParts
    window: RowParts
    weights: Weights


class Results(NamedTuple):
    """All states, and what each row of the window gave."""

    states: StateParts
    out: Part


class Held(NamedTuple):
    """In VMEM: buffers of states, rows and results, and what a row's arithmetic needs."""

    states: StateParts
    rows: RowParts
    given: Part
    kernel: Convolved
    past: Convolved
    prepared: Prepared


class Semaphores(NamedTuple):
    """Pairs of them."""

    states_come: Part
    states_gone: Part
    rows_come: Part
    rows_gone: Part


def run_window(*refs: Any) -> None:
    """The kernel: puts its parts together and runs the window."""
    count = len(Tables._fields)
    tables: Tables = Tables(*refs[:count])
    operands: Operands
    results: Results
    held: Held
    semaphores: Semaphores
    operands, *made, held, semaphores = refs[count:]
    results = Results(*made)
    states = States(stored=results.states, held=held.states, come=semaphores.states_come, gone=semaphores.states_gone)
    rows = Rows(
        places=tables.rows,
        steps=tables.starts[tables.number[0]],
        pending=operands.pending,
        window=operands.window,
        held=held.rows,
        given=held.given,
        out=results.out,
        come=semaphores.rows_come,
        gone=semaphores.rows_gone,
    )
    step = Step(own=tables.own, weights=operands.weights, kernel=held.kernel, past=held.past, prepared=held.prepared)
    _Window(tables=tables, states=states, rows=rows, step=step).run()


@dataclass(frozen=True, kw_only=True)
class _Window:
    """All runs of a window. Buffers of states are told apart by numbers: at work, on its way out, coming."""

    tables: Tables
    states: States
    rows: Rows
    step: Step

    def run(self) -> None:
        """One after another."""
        self.rows.fetch(jnp.int32(0))
        self.step.begin()
        nowhere = (jnp.int32(0), jnp.int32(NONE))
        _, leaving = jax.lax.fori_loop(0, self.tables.number[0], self._run, nowhere)
        self.states.settle(leaving)
        self.rows.settle()

    def _run(self, run: Array, buffers: tuple[Array, Array]) -> tuple[Array, Array]:
        """From the buffers of this run's state and of what is on its way out, to those of the next one."""
        at_work, leaving = buffers
        leaving = self._arrive(run, buffer=at_work, leaving=leaving)
        coming = jnp.where(leaving == NONE, (at_work + 1) % BUFFERS, _third(at_work, leaving))
        self._fetch(run + 1, buffer=coming)
        self.step.restore(self.states.held.history.at[at_work])

        def row(number: Array, buffers: tuple[Array, Array]) -> tuple[Array, Array]:
            return self._row(number, at_work=buffers[0], leaving=buffers[1], coming=coming)

        first, end = self.tables.starts[run], self.tables.starts[run + 1]
        _, leaving = jax.lax.fori_loop(first, end, row, (at_work, leaving))
        return coming, leaving

    def _arrive(self, run: Array, *, buffer: Array, leaving: Array) -> Array:
        """Waits for a run's state; what is on its way out still, if it is."""
        is_early, state = self.tables.early[run] > 0, self.tables.before[run]

        @pl.when(jnp.logical_not(is_early))
        def _() -> None:
            self.states.settle(leaving)
            self.states.fetch(state, buffer=buffer)

        self.states.arrive(state, buffer=buffer)
        return jnp.where(is_early, leaving, NONE)

    def _fetch(self, run: Array, *, buffer: Array) -> None:
        at = jnp.minimum(run, self.tables.before.shape[0] - 1)

        @pl.when((run < self.tables.number[0]) & (self.tables.early[at] > 0))
        def _() -> None:
            self.states.fetch(self.tables.before[at], buffer=buffer)

    def _row(self, number: Array, *, at_work: Array, leaving: Array, coming: Array) -> tuple[Array, Array]:
        """The buffer of the state after a step, and the one on its way out."""
        row = self.rows.take(number)
        self.step.prepare(self.rows.held.channels.at[row], gates=self.rows.held.gates.at[row])
        after = jnp.where(leaving == at_work, _third(at_work, coming), at_work)
        matrices = self.states.held.matrices
        self.step.advance(matrices.at[at_work], after=matrices.at[after], given=self.rows.given.at[row])
        self.rows.give(number)
        state = self.tables.writes[number]
        is_written = state != SCRATCH_STATE

        @pl.when(is_written)
        def _() -> None:
            self.step.store(self.states.held.history.at[after])
            self.states.leave(after, state=state, leaving=leaving)

        return after, jnp.where(is_written, after, leaving)


def _third(one: Array, other: Array) -> Array:
    return sum(range(BUFFERS)) - one - other
