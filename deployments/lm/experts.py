"""Mixture of experts over one window of rows. Knows no scheduler and no checkpoint.

The cost follows the experts that the live rows were routed to, and a row's result is a function of that row alone:
assignments of rows to experts are sorted by expert and cut into tiles of one fixed size, so every product has the
same shape in a window of any size, and a row's experts are added up in the order of its own choice.
Source of the layer: Shazeer et al., 2017. Who goes where is `lm.routing`'s to say.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float32, Int, Int32

from deployments.lm.kernels import expert_linear
from deployments.lm.layers import Activation
from deployments.lm.quant.linear import Linear, NativeInt8Linear
from deployments.lm.quant.stacked import StackedLinear
from deployments.lm.sums import rounded, sum_in_order

# XLA's fast products on CPU need several rows; more would mostly be padding, as decoding gives an expert one or two.
_TILE_ROWS = 8


class Experts(nnx.Module):
    """Gated feed-forward layers, of which each row goes through the few that were chosen for it.

    Args:
        gate_up: width to twice the experts' own width, the gates first.
        down: back to the width.
    """

    def __init__(self, *, gate_up: StackedLinear, down: StackedLinear, activation: Activation) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    def __call__(
        self,
        x: Float32[Array, "rows width"],
        *,
        chosen: Int[Array, "rows per_token"],
        weights: Float32[Array, "rows per_token"],
        live: Int32[Array, ""] | None = None,
    ) -> Float32[Array, "rows width"]:
        """The weighted sum of each row's experts; zero for rows from `live` on, which cost nothing."""
        live = jnp.int32(x.shape[0]) if live is None else live
        gate_up, down = self.gate_up.native, self.down.native
        if gate_up is None or down is None:
            parts = self._tile_by_tile(x, chosen=chosen, live=live)
        else:
            parts = self._natively(x, chosen=chosen, live=live, gate_up=gate_up, down=down)
        is_live = jnp.arange(x.shape[0]) < live
        return jnp.where(is_live[:, None], sum_in_order(rounded(weights[:, :, None] * parts)), 0.0)

    def _natively(
        self, x: Array, *, chosen: Array, live: Array, gate_up: NativeInt8Linear, down: NativeInt8Linear
    ) -> Float32[Array, "rows per_token width"]:
        multiply = partial(expert_linear.multiply, chosen=chosen, live=live)
        hidden = multiply(x[:, None], weights=gate_up.weight[...], scales=gate_up.scale[...])
        return multiply(hidden, weights=down.weight[...], scales=down.scale[...], activation=self.activation.value)

    def _tile_by_tile(self, x: Array, *, chosen: Array, live: Array) -> Float32[Array, "rows per_token width"]:
        grouped = _group(chosen, experts=self.gate_up.experts, live=live)
        spare = jnp.zeros(_TILE_ROWS, jnp.int32)
        rows = jnp.concatenate([grouped.order // chosen.shape[1], spare])

        def one_expert(state: tuple[Array, Array]) -> tuple[Array, Array]:
            begin, results = state
            number = grouped.experts[begin]
            count = jnp.sum(grouped.experts == number)
            network = self._network(number)

            def tile(index: Array, results: Array) -> Array:
                # Past the expert's last row a tile holds rows of later experts, which then write over it.
                place = begin + index * _TILE_ROWS
                part = x[jax.lax.dynamic_slice_in_dim(rows, place, _TILE_ROWS)]
                return jax.lax.dynamic_update_slice_in_dim(results, network(part), place, 0)

            tiles = (count + _TILE_ROWS - 1) // _TILE_ROWS
            return begin + count, jax.lax.fori_loop(0, tiles, tile, results)

        start = (jnp.int32(0), jnp.zeros((rows.shape[0], x.shape[1]), jnp.float32))
        _, results = jax.lax.while_loop(lambda state: state[0] < live * chosen.shape[1], one_expert, start)
        return results[grouped.places]

    def _network(self, number: Array) -> Callable[[Array], Array]:
        gate_up: Linear = self.gate_up.expert(number)
        down: Linear = self.down.expert(number)
        return lambda rows: down(self._gated(gate_up(rows)))

    def _gated(self, hidden: Float32[Array, "*rows both"]) -> Float32[Array, "*rows half"]:
        gate, up = jnp.split(hidden, 2, axis=-1)
        return self.activation(gate) * up


class _Grouped(NamedTuple):
    """Assignments sorted by expert, those of rows that are not live at the end.

    Attributes:
        order: which assignment stands at each place.
        experts: whose it is; past all experts for a row that is not live.
        places: where each row's assignments stand.
    """

    order: Int32[Array, " assignments"]
    experts: Int32[Array, " assignments"]
    places: Int32[Array, "rows per_token"]


def _group(chosen: Array, *, experts: int, live: Array) -> _Grouped:
    is_live = jnp.arange(chosen.shape[0]) < live
    wanted = jnp.where(is_live[:, None], chosen, experts).astype(jnp.int32).reshape(-1)
    numbers = jnp.arange(wanted.size, dtype=jnp.int32)
    by_expert, order = jax.lax.sort((wanted, numbers), num_keys=1, is_stable=True)
    places = jnp.zeros_like(numbers).at[order].set(numbers, unique_indices=True)
    return _Grouped(order, by_expert, places.reshape(chosen.shape))
