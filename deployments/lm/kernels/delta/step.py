"""One row of the gated delta net, within a Pallas kernel for TPUs: `lm.delta` in vectors of a TPU's shape.

Heads lie one below the other, and what is one number of a head lies along a whole vector. A matrix's product with a key
is a multiplication and a sum over its rows; the key stands upright for it. Knows no windows, and no memory but VMEM.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float32

from deployments.lm.kernels.delta.parts import Part, View

_EPSILON = 1e-6


class Weights(NamedTuple):
    """Of a layer.

    Attributes:
        kernel: the convolution's, oldest row first, `[taps, channels]`.
        rates, bias: of each gate, `[1, gates]`.
    """

    kernel: Part
    rates: Part
    bias: Part


class Convolved(NamedTuple):
    """What is there per row of the convolution, by head.

    Attributes:
        keys: queries, then keys, `[rows, 2 key_heads, key_dim]`.
        values: `[rows, heads, value_dim]`.
    """

    keys: Part
    values: Part


class Prepared(NamedTuple):
    """Of one row, by head.

    Attributes:
        units: queries and keys, `[2, key_heads, key_dim]`,
        dots: and their products, `[key_heads, value_dim]`, the same all along.
        values: `[heads, value_dim]`.
        decay, learning: `[gates, value_dim]`, the same all along.
    """

    units: Part
    dots: Part
    values: Part
    decay: Part
    learning: Part


@dataclass(frozen=True, kw_only=True)
class Step:
    """From a state and what goes into a row to the next state and what the row gives.

    Attributes:
        own: of each head the number of its gates.
        kernel: the layer's, by head,
        past: and the state's last rows.
    """

    own: jax.Ref
    weights: Weights
    kernel: Convolved
    past: Convolved
    prepared: Prepared

    def begin(self) -> None:
        """Once, before anything else."""
        _unfold(self.weights.kernel, into=self.kernel)

    def restore(self, history: View, /) -> None:
        """The past from a state's `[past, channels]`."""
        _unfold(history, into=self.past)

    def store(self, history: View, /) -> None:
        """The past to a state's."""
        rows, width = history.shape[0], _width(self.past)
        history[:, :width] = self.past.keys[...].reshape(rows, width)
        history[:, width:] = self.past.values[...].reshape(rows, history.shape[1] - width)

    def prepare(self, channels: View, /, *, gates: View) -> None:
        """All that needs no matrix: `[1, channels]` and `[2, gates]` to what `advance` takes. The row becomes past."""
        into, (key_heads, key_dim) = self.prepared, self.prepared.units.shape[1:]
        width = 2 * key_heads * key_dim
        both = _mixed(channels[:, :width].reshape(2 * key_heads, key_dim), past=self.past.keys, kernel=self.kernel.keys)
        both = both * jax.lax.rsqrt(jnp.sum(both * both, axis=-1, keepdims=True) + _EPSILON)
        queries, keys = both[:key_heads] * key_dim**-0.5, both[key_heads:]
        into.units[0], into.units[1] = queries, keys
        into.dots[...] = jnp.broadcast_to(jnp.sum(keys * queries, axis=-1, keepdims=True), into.dots.shape)
        into.values[...] = _mixed(
            channels[:, width:].reshape(into.values.shape), past=self.past.values, kernel=self.kernel.values
        )
        decay = jnp.exp(self.weights.rates[...] * jax.nn.softplus(gates[1:2] + self.weights.bias[...]))
        into.decay[...] = _upright(decay, width=into.decay.shape[1])
        into.learning[...] = _upright(jax.nn.sigmoid(gates[:1]), width=into.learning.shape[1])

    def advance(self, before: View, /, *, after: View, given: View) -> None:
        """All heads' matrices, `[heads, key_dim, value_dim]`, which may stay where they are, and what the row gives."""
        key_heads, heads, value_dim = self.prepared.units.shape[1], before.shape[0], before.shape[2]
        each = heads // key_heads

        @pl.loop(0, key_heads)
        def _(key_head: Array) -> None:
            query, key = (
                _upright(self.prepared.units[place, pl.ds(key_head, 1), :], width=value_dim) for place in (0, 1)
            )
            own = [key_head * each + place for place in range(each)]
            # All that is read, and then all that is written: a head need not wait for the sums of the one before.
            learnt = [
                self._learnt(before[head], query=query, key=key, head=head, key_head=key_head, given=given)
                for head in own
            ]
            for head, new in zip(own, learnt, strict=True):
                after[head] = before[head] * self._of(self.prepared.decay, head=head) + key * new

    def _learnt(
        self, matrix: Array, *, query: Array, key: Array, head: Array, key_head: Array, given: View
    ) -> Float32[Array, "1 value_dim"]:
        """What is added along the key; leaves what the row gives."""
        at = pl.ds(head, 1)
        decay, learning = (self._of(gate, head=head) for gate in (self.prepared.decay, self.prepared.learning))
        known, read = (jnp.sum(unit * matrix, axis=0, keepdims=True) * decay for unit in (key, query))
        learnt: Array = learning * (self.prepared.values[at, :] - known)
        given[at, :] = read + self.prepared.dots[pl.ds(key_head, 1), :] * learnt
        return learnt

    def _of(self, gate: jax.Ref, *, head: Array) -> Float32[Array, "1 value_dim"]:
        found: Array = gate[pl.ds(self.own[head], 1), :]
        return found


def _unfold(flat: View, /, *, into: Convolved) -> None:
    width = _width(into)
    into.keys[...] = flat[:, :width].reshape(into.keys.shape)
    into.values[...] = flat[:, width:].reshape(into.values.shape)


def _width(convolved: Convolved, /) -> int:
    """Of queries and keys."""
    width: int = convolved.keys.shape[1] * convolved.keys.shape[2]
    return width


def _mixed(row: Float32[Array, "heads width"], *, past: jax.Ref, kernel: jax.Ref) -> Float32[Array, "heads width"]:
    """The convolution with the rows before, of which the oldest makes room for this one."""
    count = past.shape[0]
    mixed = past[0] * kernel[0]
    for tap in range(1, count):
        mixed = mixed + past[tap] * kernel[tap]
    mixed = mixed + row * kernel[count]
    for tap in range(1, count):
        past[tap - 1] = past[tap]
    past[count - 1] = row
    return jax.nn.silu(mixed)


def _upright(row: Float32[Array, "1 heads"], *, width: int) -> Float32[Array, "heads width"]:
    """A row as a column, so many times."""
    return jnp.broadcast_to(row, (width, row.shape[1])).T
