"""The window: one family of programs that prefills, decodes and verifies. Knows rows and slots' pages, no requests.

Two stages, each compiled for a short ladder of sizes: `body` runs the layers over all rows and writes the cache,
`emit` runs the head and the sampler over the rows that need a token and accepts the drafts that equal the draws.
Plain decoding is a slot without drafts, so it is the same program as verification.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from deployments.lm.attention import TILE_ROWS, Tiles
from deployments.lm.cache.pages import Cache
from deployments.lm.models.llama.modeling import Llama, WindowRows
from deployments.lm.sampling import SamplerRows, draw

ROW_FIELDS = 5
EMIT_INTS = 7
EMIT_FLOATS = 3
TILE_FIELDS = 2 * TILE_ROWS


type HostOrDevice = Array | np.ndarray


@dataclass(frozen=True, order=True, kw_only=True)
class Rung:
    """One size of `body`: so many rows, attended to in so many tiles."""

    rows: int
    tiles: int

    def holds(self, *, rows: int, tiles: int) -> bool:
        """Whether a window of this many rows and tiles fits."""
        return rows <= self.rows and tiles <= self.tiles


class BodyInput(NamedTuple):
    """A window as the host packs it: few arrays, since each one costs a transfer.

    Attributes:
        rows: per row token, position, page, offset, lane in the tiles.
        tiles: per tile its lanes' row numbers, their positions, and the slot's page table.
    """

    rows: Int32[HostOrDevice, "rows row_fields"]
    tiles: Int32[HostOrDevice, "tiles tile_fields"]


class EmitInput(NamedTuple):
    """The rows that draw a token.

    Attributes:
        ints: per row its number in the window, its token, whether it begins a chain (1) or continues the row before
            it (0), `top_k`, seed, choice, and the position drawn for (the last three as bit patterns).
        floats: temperature, `top_p`, `min_p`.
    """

    ints: Int32[HostOrDevice, "emits ints"]
    floats: Float32[HostOrDevice, "emits floats"]


class Emitted(NamedTuple):
    """What came of them.

    Attributes:
        tokens: the target's own draw after each row.
        live: whether the row's own token is accepted, and so its draw counts.
        scores: the winning scores, for bitwise comparison.
    """

    tokens: Int32[Array, " emits"]
    live: Bool[Array, " emits"]
    scores: Float32[Array, " emits"]


def body(network: Llama, cache: Cache, window: BodyInput) -> tuple[Float32[Array, "rows width"], Cache]:
    """Runs the layers over a window's rows; donates `cache`."""
    tokens, positions, pages, offsets, lanes = (jnp.asarray(window.rows)[:, i] for i in range(ROW_FIELDS))
    table = jnp.asarray(window.tiles)
    tiles = Tiles(
        rows=table[:, :TILE_ROWS],
        positions=table[:, TILE_ROWS:TILE_FIELDS],
        pages=table[:, TILE_FIELDS:],
        lane_of_row=lanes,
    )
    rows = WindowRows(tokens=tokens, positions=positions, pages=pages, offsets=offsets)
    return network.hidden(rows, tiles=tiles, cache=cache)


def emit(network: Llama, hidden: Float32[Array, "rows width"], request: EmitInput, *, longest: int) -> Emitted:
    """Draws after each row named and accepts the drafts that equal the draws; a chain has at most `longest` drafts."""
    row, token, first, top_k, seed, choice, position = (jnp.asarray(request.ints)[:, i] for i in range(EMIT_INTS))
    temperature, top_p, min_p = (jnp.asarray(request.floats)[:, i] for i in range(EMIT_FLOATS))
    settings = SamplerRows(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=_bits(seed),
        choice=_bits(choice),
        position=_bits(position),
    )
    draws = draw(network.logits(hidden[row]), settings=settings)
    live = accept(draws.tokens, tokens=token, first=first == 1, longest=longest)
    return Emitted(tokens=draws.tokens, live=live, scores=draws.scores)


def accept(
    draws: Int32[Array, " emits"],
    *,
    tokens: Int32[Array, " emits"],
    first: Bool[Array, " emits"],
    longest: int,
) -> Bool[Array, " emits"]:
    """A row counts when it begins its chain, or when the row before it counts and drew this row's token."""
    equal = tokens == jnp.roll(draws, 1)
    live = first
    for _ in range(longest):
        live = first | (jnp.roll(live, 1) & equal)
    return live


def _bits(x: Int32[Array, " emits"]) -> Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)
