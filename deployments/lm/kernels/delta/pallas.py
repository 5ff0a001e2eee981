"""The gated delta net's recurrence on TPUs, by a Pallas kernel that also runs, interpreted, on processors.

`lm.delta` is its specification, and `lm.recurrence` says which rows are run through which state. One call is a whole
window of one layer: its runs one after another, and each run's rows one by one, by the same instructions on the same
shapes. So a row's bits depend on its prefix alone, whatever the window holds beside it, and a row that is run again
comes out as it did the first time.

A state is in VMEM while a run goes through it: it is read once, and written where `Runs` says, in place. While a row is
worked on, the next one is on its way, and so are the next run's state, the last result and the last state that was
written. The convolution and the gates' functions are in here too: the first needs the rows before, and the second are
few values, which are no whole vectors of a window of few rows.

A window moves `hbm_bytes`. VMEM holds three states and little else, however many rows there are; see `vmem_bytes`.
Knows no networks, no slots and no chip.
"""

from math import prod
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float32, Int

from deployments.lm.cache.layout import SCRATCH_STATE, Recurrent
from deployments.lm.kernels.delta import rows as row_buffers
from deployments.lm.kernels.delta import states as state_buffers
from deployments.lm.kernels.delta.rows import RowParts
from deployments.lm.kernels.delta.states import StateParts
from deployments.lm.kernels.delta.step import Convolved, Prepared, Weights
from deployments.lm.kernels.delta.window import Held, Operands, Results, Semaphores, Tables, run_window
from deployments.lm.recurrence import Recurred, Runs

type _Sizes = tuple[int, ...]

_LANES, _SUBLANES = 128, 8
# Of a core's VMEM, which is 64 MiB where there is least: what the kernel may take, and what of it is for values under
# way. It says so itself, as three states may be more than what one instruction gets by default.
_MOST_VMEM, _UNDER_WAY = 32 << 20, 4 << 20
# A head's matrix is a value under way, and not the only one.
_MOST_HEAD = 2 << 20
# Where the states come among what the kernel takes.
_STATES = len(Tables._fields)


class Sized(Protocol):
    """An array, or what has the shape of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class Numbers(NamedTuple):
    """A layer's own numbers.

    Attributes:
        kernel: the convolution's, oldest row first.
        rates, bias: of each gate.
        own: of each head that is here, the number of its gate.
    """

    kernel: Float32[Array, "taps channels"]
    rates: Float32[Array, " gates"]
    bias: Float32[Array, " gates"]
    own: Int[Array, " heads"]


def serves(shape: Recurrent, /) -> bool:
    """Whether the kernel can run such layers on a TPU: heads of whole vectors, none too large, and three states fit its
    memory."""
    is_whole = shape.key_dim % _LANES == 0 and shape.value_dim % _LANES == 0
    is_small = 4 * shape.key_dim * shape.value_dim <= _MOST_HEAD
    return is_whole and is_small and vmem_bytes(shape) <= _MOST_VMEM - _UNDER_WAY


def recur(
    states: tuple[Array, Array],
    /,
    *,
    pending: tuple[Array, Array],
    rows: tuple[Array, Array],
    runs: Runs,
    numbers: Numbers,
    interpret: bool = False,
) -> Recurred:
    """As `lm.recurrence.recur` with the step of `lm.delta`.

    Args:
        states: matrices and history, as in `lm.cache.layout.RecurrentState`.
        pending, rows: channels and gates, as there.
        interpret: as in `lm.kernels.attention.pallas.attend`.
    """
    shape = shape_of(matrices=states[0], history=states[1], gates=rows[1])
    # A compiler with room in VMEM would else bring some of all states there before the kernel begins, and back.
    stored = states if interpret else tuple(pltpu.with_memory_space_constraint(one, pltpu.HBM) for one in states)
    operands = Operands(
        states=StateParts(*stored),
        pending=RowParts(*pending),
        window=RowParts(*rows),
        weights=Weights(numbers.kernel, numbers.rates[None], numbers.bias[None]),
    )
    results = Results(
        states=StateParts(*(jax.ShapeDtypeStruct(one.shape, jnp.float32) for one in states)),
        out=jax.ShapeDtypeStruct((len(rows[0]), shape.heads, shape.value_dim), jnp.float32),
    )
    call = pl.pallas_call(
        run_window,
        grid_spec=_grid_spec(shape),
        out_shape=results,
        input_output_aliases={_STATES + place: place for place in range(len(states))},
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_MOST_VMEM),
        name="outrider_delta",
        interpret=interpret,
    )
    new: Results = call(*_tables(runs, own=numbers.own), operands)
    # Where no row was run there is whatever the memory held before.
    is_run = _is_run(runs, waiting=len(pending[0]), count=len(rows[0]))
    return Recurred(jnp.where(is_run[:, None, None], new.out, 0), tuple(new.states))


def hbm_bytes(shape: Recurrent, /, *, reads: int, writes: int, again: int, rows: int, given: int) -> int:
    """What the kernel moves between HBM and VMEM in one window, which XLA's cost analysis cannot see.

    Args:
        reads, writes: of states.
        again: rows of earlier windows that are run once more.
        rows, given: of this window, and what they give; none where XLA keeps them in VMEM.
    """
    state = shape.heads * shape.key_dim * shape.value_dim + (shape.taps - 1) * shape.channels
    row = shape.channels + 2 * (shape.gates or shape.heads)
    own = shape.taps * shape.channels
    return 4 * ((reads + writes) * state + (again + rows) * row + given * shape.heads * shape.value_dim + own)


def vmem_bytes(shape: Recurrent, /) -> int:
    """What the kernel holds in VMEM beside values under way."""
    weights = ((shape.taps, shape.channels), (1, shape.gates or shape.heads), (1, shape.gates or shape.heads))
    return sum(map(_padded_bytes, (*jax.tree.leaves(_held(shape), is_leaf=_is_sizes), *weights)))


def shape_of(*, matrices: Sized, history: Sized, gates: Sized) -> Recurrent:
    """The layer's, of states and of the gates of rows."""
    _, heads, key_dim, value_dim = matrices.shape
    _, past, channels = history.shape
    return Recurrent(
        heads=heads, key_dim=key_dim, value_dim=value_dim, channels=channels, taps=past + 1, gates=gates.shape[-1]
    )


def _is_sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(size, int) for size in value)


def _padded_bytes(sizes: _Sizes) -> int:
    *outer, sublanes, lanes = sizes
    return 4 * prod(outer) * -(-sublanes // _SUBLANES) * _SUBLANES * -(-lanes // _LANES) * _LANES


def _tables(runs: Runs, *, own: Array) -> Tables:
    tables = (runs.number[None], runs.before, runs.starts, runs.rows, runs.writes, _early(runs), own)
    return Tables._make(table.astype(jnp.int32) for table in tables)


def _early(runs: Runs) -> Bool[Array, " segments"]:
    """Not of the first run, and not where a run ahead writes that state."""
    number = jnp.arange(len(runs.rows))
    is_ahead = number < runs.starts[:-1, None]
    is_written = (runs.writes == runs.before[:, None]) & (runs.writes != SCRATCH_STATE) & is_ahead
    return ~jnp.any(is_written, axis=1) & (jnp.arange(len(runs.before)) > 0)


def _is_run(runs: Runs, *, waiting: int, count: int) -> Bool[Array, " rows"]:
    is_step = jnp.arange(len(runs.rows)) < runs.starts[runs.number]
    return jnp.any((runs.rows == waiting + jnp.arange(count)[:, None]) & is_step, axis=1)


def _held(shape: Recurrent) -> Held:
    """The sizes of what is held."""
    gates = shape.gates or shape.heads
    width = shape.channels - shape.heads * shape.value_dim
    key_heads, past = width // shape.key_dim // 2, shape.taps - 1
    queries_and_keys, values = (2 * key_heads, shape.key_dim), (shape.heads, shape.value_dim)
    return Held(
        states=StateParts(
            (state_buffers.BUFFERS, shape.heads, shape.key_dim, shape.value_dim),
            (state_buffers.BUFFERS, past, shape.channels),
        ),
        rows=RowParts((row_buffers.BUFFERS, 1, shape.channels), (row_buffers.BUFFERS, 2, gates)),
        given=(row_buffers.BUFFERS, *values),
        kernel=Convolved((shape.taps, *queries_and_keys), (shape.taps, *values)),
        past=Convolved((past, *queries_and_keys), (past, *values)),
        prepared=Prepared(
            units=(2, key_heads, shape.key_dim),
            dots=(key_heads, shape.value_dim),
            values=values,
            decay=(gates, shape.value_dim),
            learning=(gates, shape.value_dim),
        ),
    )


def _grid_spec(shape: Recurrent) -> pltpu.PrefetchScalarGridSpec:
    anywhere, hbm, vmem = (pl.BlockSpec(memory_space=space) for space in (pl.ANY, pltpu.HBM, pltpu.VMEM))
    states, rows = StateParts(hbm, hbm), RowParts(anywhere, anywhere)
    held = jax.tree.map(lambda sizes: pltpu.VMEM(sizes, jnp.float32), _held(shape), is_leaf=_is_sizes)
    pair = pltpu.SemaphoreType.DMA((2,))
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(Tables._fields),
        grid=(),
        in_specs=[Operands(states=states, pending=rows, window=rows, weights=Weights(vmem, vmem, vmem))],
        out_specs=Results(states=states, out=anywhere),
        scratch_shapes=[held, Semaphores(pair, pair, pair, pair)],
    )
