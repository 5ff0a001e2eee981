"""What a draw takes beyond its own rows, on the device: one that asks for nothing, kept there; or a window's own.

Nothing a window brings outlives it, so there is nothing that a failure or a preemption could leave stale.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int32

from deployments.lm.sampling.shaping import BLOCK_FIELDS
from deployments.verifier.history import most_blocks
from deployments.verifier.packing import PackedExtras, no_shaping
from deployments.verifier.window import EmitExtras

_FEWEST, _STEP = 4, 4


def extras_shapes(size: int, /, *, slots: int, context: int, longest: int) -> EmitExtras:
    """What a draw of `size` rows takes, without its values."""
    most = slots * most_blocks(context=context, longest=longest)
    nothing = no_shaping(size)
    rows, blocks, numbers = ((nothing.shape, nothing.dtype), ((most, BLOCK_FIELDS), jnp.int32), ((2,), jnp.int32))
    return EmitExtras(*(_shape_alone(*shape) for shape in (rows, blocks, numbers)))


class ExtrasSupply:
    """Makes `EmitExtras` of one shape per size of the draw.

    A long history is rare: only as many blocks as are used, rounded up, go to the device, and are widened there to the
    number that the programs take.

    Args:
        sizes: of the draw.
        place: puts arrays where the programs run.
    """

    def __init__(
        self,
        *,
        sizes: tuple[int, ...],
        slots: int,
        context: int,
        longest: int,
        place: Callable[[Any], Any] = lambda leaves: leaves,
    ) -> None:
        self._most = slots * most_blocks(context=context, longest=longest)
        blocks = jnp.zeros((self._most, BLOCK_FIELDS), jnp.int32)
        nothing = jnp.zeros(2, jnp.int32)
        blocks, nothing = place((blocks, nothing))
        self._none = {
            size: EmitExtras(rows=place(jnp.asarray(no_shaping(size))), blocks=blocks, numbers=nothing)
            for size in sizes
        }
        self._place = place
        self._widen = {count: self._widening(count) for count in _steps(self._most)}

    def none(self, size: int, /) -> EmitExtras:
        """Asks for nothing; already on the device."""
        return self._none[size]

    def some(self, extras: PackedExtras, /) -> EmitExtras:
        """A window's own."""
        used = len(extras.blocks)
        step = next(count for count in self._widen if count >= used)
        padded = np.zeros((step, BLOCK_FIELDS), np.int32)
        padded[:used] = extras.blocks
        numbers = np.asarray([used, extras.wants_logprobs], np.int32)
        return EmitExtras(rows=extras.rows, blocks=self._place(self._widen[step](padded)), numbers=numbers)

    def _widening(self, count: int) -> Any:
        def widen(blocks: Int32[Array, "count fields"]) -> Int32[Array, "most fields"]:
            return jnp.pad(blocks, ((0, self._most - count), (0, 0)))

        return jax.jit(widen).lower(jax.ShapeDtypeStruct((count, BLOCK_FIELDS), jnp.int32)).compile()


def _shape_alone(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _steps(most: int) -> list[int]:
    steps = [min(_FEWEST, most)]
    while steps[-1] < most:
        steps.append(min(_STEP * steps[-1], most))
    return steps
