"""A verifier's programs before they are compiled, for devices that need not be here.

Says what they take, and lowers them. Neither compiles nor runs; the weights may be shapes alone.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from deployments.lm.cache.layout import CacheShape
from deployments.lm.decoder import Decoder
from deployments.lm.recurrence import SEGMENT_FIELDS
from deployments.verifier.ladder import Ladder
from deployments.verifier.states import StateRoom
from deployments.verifier.supplying import extras_shapes
from deployments.verifier.window import (
    EMIT_FLOATS,
    EMIT_INTS,
    ROW_FIELDS,
    TILE_FIELDS,
    BodyInput,
    EmitExtras,
    EmitInput,
    Rung,
    body,
    emit,
)

type Lowered = jax.stages.Lowered


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a verifier's programs are compiled for.

    Attributes:
        slots: the most chains in a window.
        slot_pages: the length of a slot's page table.
        longest: the most drafts in a chain.
        room: of the states of recurrent layers; `None` where there are none.
    """

    ladder: Ladder
    shape: CacheShape
    cache_dtype: jnp.dtype
    slots: int
    slot_pages: int
    longest: int
    room: StateRoom | None = None

    @property
    def context(self) -> int:
        """The most tokens of a slot."""
        return self.slot_pages * self.shape.page_size


class Blueprint:
    """Every program of a verifier, as it is lowered.

    Args:
        network: its leaves may be `jax.ShapeDtypeStruct`.
        mesh: the devices to lower for; `None` for the one that is here.

    Attributes:
        weights: the network's leaves. A flat list: a nested state is taken apart in Python, in every call, which takes
            longer than the dispatch.
    """

    def __init__(self, network: Decoder, *, sizes: Sizes, mesh: Mesh | None = None) -> None:
        self.sizes = sizes
        self.mesh = mesh
        self._width = network.config.width
        self._graph, state = nnx.split(network)
        self.weights, self._structure = jax.tree.flatten(state)

    @property
    def rows(self) -> int:
        """How many hidden rows every rung hands on: one shape, so that one `emit` serves them all."""
        return self.sizes.ladder.widest.rows

    def rebuilt(self, weights: list[Array], /) -> Decoder:
        """The network over other leaves."""
        return nnx.merge(self._graph, jax.tree.unflatten(self._structure, weights))

    def body(self, rung: Rung, /) -> Lowered:
        """The layers over one rung's rows; donates the cache."""

        def run_body(weights: list[Array], cache: Any, window: BodyInput) -> Any:
            hidden, cache = body(self.rebuilt(weights), cache, window)
            return jnp.pad(hidden, ((0, self.rows - hidden.shape[0]), (0, 0))), cache

        taken = (self.weights_taken, self.cache_taken, self._window_taken(rung))
        return jax.jit(run_body, donate_argnums=1).lower(*taken)

    def emit(self, size: int, /) -> Lowered:
        """Head and sampler over `size` rows."""

        def run_emit(weights: list[Array], hidden: Array, request: EmitInput, extras: EmitExtras) -> Any:
            return emit(self.rebuilt(weights), hidden, request, extras, longest=self.sizes.longest)

        extras = self._on_mesh(
            extras_shapes(size, slots=self.sizes.slots, context=self.sizes.context, longest=self.sizes.longest)
        )
        request = EmitInput(ints=self._taken(size, EMIT_INTS), floats=self._taken(size, EMIT_FLOATS, dtype=jnp.float32))
        return jax.jit(run_emit).lower(self.weights_taken, self.hidden_taken, request, self._on_mesh(extras))

    def head(self, rows: int, /) -> Lowered:
        """The head without the sampler, from all hidden rows and `rows` row numbers to logits; for measurements."""

        def run_head(weights: list[Array], hidden: Array, numbers: Array) -> Array:
            return self.rebuilt(weights).logits(hidden[numbers])

        return jax.jit(run_head).lower(self.weights_taken, self.hidden_taken, self._taken(rows))

    def all_lowered(self) -> dict[Rung | int, Lowered]:
        """Every program: bodies by their rung, draws by their size."""
        bodies: dict[Rung | int, Lowered] = {rung: self.body(rung) for rung in self.sizes.ladder.rungs}
        return bodies | {size: self.emit(size) for size in self.sizes.ladder.emits}

    @property
    def weights_taken(self) -> Any:
        return self._on_mesh(self.weights)

    @property
    def cache_taken(self) -> Any:
        return self._on_mesh(jax.eval_shape(lambda: self.sizes.shape.zeros(self.sizes.cache_dtype)))

    @property
    def hidden_taken(self) -> Any:
        return self._taken(self.rows, self._width, dtype=jnp.float32)

    def _window_taken(self, rung: Rung) -> BodyInput:
        room = self.sizes.room
        return BodyInput(
            rows=self._taken(rung.rows, ROW_FIELDS),
            tiles=self._taken(rung.tiles, TILE_FIELDS + self.sizes.slot_pages),
            recurrence=None if room is None else self._taken(room.segments * SEGMENT_FIELDS + rung.rows),
        )

    def _taken(self, *shape: int, dtype: DTypeLike = jnp.int32) -> Any:
        return self._on_mesh(jax.ShapeDtypeStruct(shape, dtype))

    def _on_mesh(self, leaves: Any) -> Any:
        sharding = None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), leaves)
