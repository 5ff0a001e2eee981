"""A verifier's programs before they are compiled, for devices that need not be here.

Says what they take, and lowers them. Neither compiles nor runs; the weights may be shapes alone.
"""

from collections.abc import Callable
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
from deployments.lm.drafting.chip import ngram_on_chip
from deployments.lm.mesh import cache_specs, in_order, spec_of
from deployments.lm.recurrence import SEGMENT_FIELDS
from deployments.verifier.calls import ChipRounds, RoundsInput, RoundsSize, rounds_taken
from deployments.verifier.compiling import options_for
from deployments.verifier.ladder import Ladder
from deployments.verifier.rounds import run_rounds
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
type ProgramKey = Rung | int | RoundsSize

_WHOLE = PartitionSpec()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a verifier's programs are compiled for.

    Attributes:
        slots: the most chains in a window.
        slot_pages: the length of a slot's page table.
        longest: the most drafts in a chain.
        room: of the states of recurrent layers; `None` where there are none.
        rounds: device calls of several windows; `None` where there are none.
    """

    ladder: Ladder
    shape: CacheShape
    cache_dtype: jnp.dtype
    slots: int
    slot_pages: int
    longest: int
    room: StateRoom | None = None
    rounds: ChipRounds | None = None

    @property
    def context(self) -> int:
        """The most tokens of a slot."""
        return self.slot_pages * self.shape.page_size


class Blueprint:
    """Every program of a verifier, as it is lowered.

    Args:
        network: its leaves may be `jax.ShapeDtypeStruct`.
        mesh: the devices to lower for; `None` for the one that is here. With more than one, the network is one that
            `splitting.split_network` made, and each device runs the programs over its own share.

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
        self._cache_specs = cache_specs(sizes.shape)
        self._specs = [spec_of(leaf) for leaf in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, nnx.Variable))]

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

        run = self._on_each(run_body, given=(self._cache_specs, _WHOLE), gives=(_WHOLE, self._cache_specs))
        taken = (self.weights_taken, self.cache_taken, self._window_taken(rung))
        # Without a format of its own an output may lie otherwise than what it replaces, and be copied.
        kept = None if self.mesh is None else (None, jax.tree.map(lambda leaf: leaf.format, self.cache_taken))
        return self._jitted(run, donate_argnums=1, out_shardings=kept).lower(*taken)

    def emit(self, size: int, /) -> Lowered:
        """Head and sampler over `size` rows."""

        def run_emit(weights: list[Array], hidden: Array, request: EmitInput, extras: EmitExtras) -> Any:
            return emit(self.rebuilt(weights), hidden, request, extras, longest=self.sizes.longest)

        extras = extras_shapes(size, slots=self.sizes.slots, context=self.sizes.context, longest=self.sizes.longest)
        request = EmitInput(ints=self._taken(size, EMIT_INTS), floats=self._taken(size, EMIT_FLOATS, dtype=jnp.float32))
        run = self._on_each(run_emit, given=(_WHOLE, _WHOLE, _WHOLE), gives=_WHOLE)
        return self._jitted(run).lower(self.weights_taken, self.hidden_taken, request, self._on_mesh(extras))

    def head(self, rows: int, /) -> Lowered:
        """The head without the sampler, from all hidden rows and `rows` row numbers to logits; for measurements."""

        def run_head(weights: list[Array], hidden: Array, numbers: Array) -> Array:
            return self.rebuilt(weights).logits(hidden[numbers])

        run = self._on_each(run_head, given=(_WHOLE, _WHOLE), gives=_WHOLE)
        return self._jitted(run).lower(self.weights_taken, self.hidden_taken, self._taken(rows))

    def rounds(self, size: RoundsSize, /) -> Lowered:
        """Several windows in one call, with the drafter between them; donates the cache."""
        chip, sizes = self.sizes.rounds, self.sizes
        assert chip is not None
        draft = ngram_on_chip(chip.drafter, longest=size.longest)

        def run(weights: list[Array], cache: Any, taken: RoundsInput, extras: EmitExtras) -> Any:
            network = self.rebuilt(weights)
            return run_rounds(network, cache, taken, extras, draft=draft, size=size, page_size=sizes.shape.page_size)

        run_on_each = self._on_each(run, given=(self._cache_specs, _WHOLE, _WHOLE), gives=(_WHOLE, self._cache_specs))
        taken = rounds_taken(slots=sizes.slots, context=sizes.context, slot_pages=sizes.slot_pages)
        extras = extras_shapes(size.emits, slots=sizes.slots, context=sizes.context, longest=sizes.longest)
        given = (self.weights_taken, self.cache_taken, self._on_mesh(taken), self._on_mesh(extras))
        kept = None if self.mesh is None else (None, jax.tree.map(lambda leaf: leaf.format, self.cache_taken))
        return self._jitted(run_on_each, donate_argnums=1, out_shardings=kept).lower(*given)

    def all_lowered(self) -> dict[ProgramKey, Lowered]:
        """Every program: bodies by their rung, draws by their size, and calls of several rounds by theirs."""
        bodies: dict[ProgramKey, Lowered] = {rung: self.body(rung) for rung in self.sizes.ladder.rungs}
        calls = () if self.sizes.rounds is None else self.sizes.rounds.sizes
        draws = {size: self.emit(size) for size in self.sizes.ladder.emits}
        return bodies | draws | {size: self.rounds(size) for size in calls}

    @property
    def weights_taken(self) -> Any:
        return self._on_mesh(self.weights, specs=self._specs)

    @property
    def cache_taken(self) -> Any:
        return self._on_mesh(jax.eval_shape(self._zeros), specs=self._cache_specs)

    def fresh_cache(self) -> Any:
        """A cache of zeros on the devices."""
        if self.mesh is None:
            return self._zeros()
        return self._jitted(self._zeros, out_shardings=jax.tree.map(lambda leaf: leaf.format, self.cache_taken))()

    def clearing(self) -> Lowered:
        """Makes zeros of a cache, in place."""

        def zeros_like(cache: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, cache)

        taken = self.cache_taken
        kept = None if self.mesh is None else jax.tree.map(lambda leaf: leaf.format, taken)
        return self._jitted(zeros_like, donate_argnums=0, keep_unused=True, out_shardings=kept).lower(taken)

    def everywhere(self, leaves: Any, /) -> Any:
        """Arrays of the host's or of one device's, whole on every device."""
        return leaves if self.mesh is None else jax.device_put(leaves, NamedSharding(self.mesh, _WHOLE))

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

    def _zeros(self) -> Any:
        return self.sizes.shape.zeros(self.sizes.cache_dtype)

    def _jitted(self, run: Callable[..., Any], **options: Any) -> jax.stages.Wrapped:
        return jax.jit(run, compiler_options=options_for(self.mesh), **options)

    def _on_each(self, run: Callable[..., Any], *, given: tuple[Any, ...], gives: Any) -> Callable[..., Any]:
        """The program as each device runs it, over its own share of the weights and of what is given."""
        if self.mesh is None:
            return run
        # Also over one: kernels look at the mesh they are lowered in for the chip they are for.
        specs = (self._specs, *given)
        return jax.shard_map(run, mesh=self.mesh, in_specs=specs, out_specs=gives, check_vma=False)

    def _on_mesh(self, leaves: Any, *, specs: Any = None) -> Any:
        def taken(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            whole = None if self.mesh is None else NamedSharding(self.mesh, _WHOLE)
            # What stays on the devices lies as it was put there; what the host sends, as it comes.
            sharding = whole if self.mesh is None or specs is None else in_order(self.mesh, spec=spec, dims=leaf.ndim)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree.map(taken, leaves, jax.tree.map(lambda _: _WHOLE, leaves) if specs is None else specs)
