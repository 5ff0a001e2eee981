"""The gated delta net: a recurrent layer with a matrix per head, and a short convolution before it.

Sources: Yang et al., 2024, "Gated Delta Networks"; as in Qwen3-Next and Qwen3.5. Written as the recurrence itself, row
by row: its forms in chunks give other bits for other chunks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float32

from deployments.lm.cache.layout import Recurrent, RecurrentState
from deployments.lm.decoder import Mixed, Window
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.delta import pallas
from deployments.lm.layers import RMSNorm
from deployments.lm.quant.linear import Linear
from deployments.lm.recurrence import Recurred, Recurrence, recur, runs_of

# Of the norm of queries and keys, whatever the network's own is.
_EPSILON = 1e-6


class _RowInputs(NamedTuple):
    """What goes into a row: the convolution's inputs, and what decay and learning rate come of."""

    channels: Float32[Array, "*rows channels"]
    gates: Float32[Array, "*rows 2 heads"]


class _State(NamedTuple):
    """Of one sequence, or of all of them."""

    matrices: Float32[Array, "*states heads key_dim value_dim"]
    history: Float32[Array, "*states past channels"]


class GatedDeltaNet(nnx.Module):
    """Mixes a sequence's rows through a state of fixed size.

    Args:
        inputs: queries, keys and values of all heads, one below the other, and the output's gate.
        gates: per head what the learning rate comes of, then what the decay does.
        rates: per head how fast it forgets; negative.
        bias: per head, added to what the decay comes of.
        kernel: the convolution's, oldest row first.
        norm: over each head's values.
        key_heads: queries and keys have so many, each of which serves several neighbouring heads.
        kernels: the Pallas kernel serves heads whose keys and values are multiples of 128; interpreted, any.

    Attributes:
        own: numbers of the heads that are here, of those that `gates`, `rates` and `bias` are for: few values, whole on
            every device, so that no bit depends on how many share them. `None` where all are here.
    """

    def __init__(
        self,
        *,
        inputs: Linear,
        gates: Linear,
        rates: Float32[Array, " heads"],
        bias: Float32[Array, " heads"],
        kernel: Float32[Array, "taps channels"],
        norm: RMSNorm,
        output: Linear,
        key_heads: int,
        shape: Recurrent,
        kernels: Kernels = Kernels.XLA,
    ) -> None:
        self.inputs = inputs
        self.gates = gates
        self.rates = nnx.Param(rates)
        self.bias = nnx.Param(bias)
        self.kernel = nnx.Param(kernel)
        self.norm = norm
        self.output = output
        self.key_heads = key_heads
        self.shape = shape
        self.kernels = kernels
        self.own: nnx.Variable[Array] | None = nnx.data(None)

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window, cache: RecurrentState) -> Mixed:
        """The layer's share of the residual stream, and its states with the rows that stay in them."""
        shape, live, recurrence = self.shape, window.rows.live, window.rows.recurrence
        if recurrence is None:
            raise ValueError("a window without segments reached a recurrent layer")
        channels, weights = jnp.split(self.inputs(x, live=live), [shape.channels], axis=-1)
        rows = _RowInputs(channels, self.gates(x, live=live).reshape(x.shape[0], 2, -1))
        out, states = self._recurred(cache, rows=rows, recurrence=recurrence)
        # The pending rows have been read before they are overwritten, so nothing need be copied.
        out, kept = jax.lax.optimization_barrier((out, _RowInputs(cache.pending_inputs, cache.pending_gates)))
        kept = jax.tree.map(lambda old, new: old.at[recurrence.places].set(new, mode="promise_in_bounds"), kept, rows)
        gated = self.norm(out).reshape(x.shape[0], -1) * jax.nn.silu(weights)
        return Mixed(self.output(gated, live=live), RecurrentState(*states, *kept))

    def _recurred(self, cache: RecurrentState, *, rows: _RowInputs, recurrence: Recurrence) -> Recurred:
        states = _State(cache.matrices, cache.history)
        pending = _RowInputs(cache.pending_inputs, cache.pending_gates)
        if self._is_pallas:
            own = jnp.arange(self.shape.heads) if self.own is None else self.own[...]
            return pallas.recur(
                states,
                pending=pending,
                rows=rows,
                runs=runs_of(jnp.asarray(recurrence.segments), steps=len(pending.gates) + len(rows.gates)),
                numbers=pallas.Numbers(self.kernel[...], self.rates[...], self.bias[...], own),
                interpret=self.kernels is Kernels.PALLAS_INTERPRETED,
            )
        return recur(
            self._step,
            states=states,
            pending=pending,
            rows=rows,
            recurrence=recurrence,
            like=jax.ShapeDtypeStruct((self.shape.heads, self.shape.value_dim), jnp.float32),
        )

    @property
    def _is_pallas(self) -> bool:
        is_chosen = self.kernels is Kernels.PALLAS and pallas.serves(self.shape)
        return is_chosen or self.kernels is Kernels.PALLAS_INTERPRETED

    def _step(self, state: _State, row: _RowInputs) -> tuple[_State, Float32[Array, "heads value_dim"]]:
        taps = jnp.concatenate([state.history, row.channels[None]])
        kernel = self.kernel[...]
        mixed = taps[0] * kernel[0]
        for tap in range(1, self.shape.taps):
            mixed = mixed + taps[tap] * kernel[tap]
        # Here and not for all rows at once: few values of each row are no whole vector of the processor's, and what is
        # left over of a window's is computed otherwise than the rest.
        decay = jnp.exp(self.rates[...] * jax.nn.softplus(row.gates[1] + self.bias[...]))
        learning = jax.nn.sigmoid(row.gates[0])
        if self.own is not None:
            decay, learning = (gate[self.own[...]] for gate in jax.lax.optimization_barrier((decay, learning)))
        # Barriers keep XLA from computing all of this anew for every element of the matrices.
        mixed = jax.lax.optimization_barrier(jax.nn.silu(mixed))
        queries, keys, values, decay, learning = jax.lax.optimization_barrier(
            (*self._heads(mixed), decay[:, None], learning[:, None])
        )
        read = _product(jnp.stack([keys, queries], axis=1), state.matrices) * decay[:, None]
        learnt = jax.lax.optimization_barrier(learning * (values - read[:, 0]))
        out = read[:, 1] + jnp.sum(keys * queries, axis=-1, keepdims=True) * learnt
        matrices = state.matrices * decay[:, :, None] + keys[:, :, None] * learnt[:, None, :]
        return _State(matrices, taps[1:]), out

    def _heads(self, mixed: Float32[Array, " channels"]) -> tuple[Array, Array, Array]:
        shape = self.shape
        width = self.key_heads * shape.key_dim
        queries, keys, values = jnp.split(mixed, [width, 2 * width])
        each = shape.heads // self.key_heads
        queries, keys = (
            jnp.repeat(_unit(part.reshape(self.key_heads, shape.key_dim)), each, axis=0) for part in (queries, keys)
        )
        return queries * shape.key_dim**-0.5, keys, values.reshape(shape.heads, shape.value_dim)


def _unit(x: Float32[Array, "heads width"]) -> Float32[Array, "heads width"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _EPSILON)


def _product(
    rows: Float32[Array, "heads 2 key_dim"], matrices: Float32[Array, "heads key_dim value_dim"]
) -> Float32[Array, "heads 2 value_dim"]:
    return jnp.einsum("hnk,hkv->hnv", rows, matrices, precision=jax.lax.Precision.HIGHEST)
