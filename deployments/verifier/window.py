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
from deployments.lm.cache.layout import Cache
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.decoder import Decoder, WindowRows
from deployments.lm.recurrence import Recurrence
from deployments.lm.sampling.drawing import SamplerRows, draw
from deployments.lm.sampling.logprobs import LogProbs, logprobs_of, no_logprobs
from deployments.lm.sampling.shaping import Shaping, shape_logits
from deployments.lm.sampling.share import Share

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
        recurrence: as `Recurrence.unpacked` takes it; `None` in networks without recurrent layers.
    """

    rows: Int32[HostOrDevice, "rows row_fields"]
    tiles: Int32[HostOrDevice, "tiles tile_fields"]
    recurrence: Int32[HostOrDevice, " numbers"] | None = None


class EmitInput(NamedTuple):
    """The rows that draw a token.

    Attributes:
        ints: per row its number in the window, its token, whether it begins a chain (1) or continues the row before
            it (0), `top_k`, seed, choice, and the position drawn for (the last three as bit patterns). Nothing is ever
            drawn for position 0: it marks padding, which comes last.
        floats: temperature, `top_p`, `min_p`.
    """

    ints: Int32[HostOrDevice, "emits ints"]
    floats: Float32[HostOrDevice, "emits floats"]


class EmitExtras(NamedTuple):
    """What only some requests ask for; most windows take one that asks for nothing and costs nothing.

    Attributes:
        rows, blocks: as in `shaping.Shaping`.
        numbers: how many of the blocks are used, and whether log-probabilities are wanted (1) or not (0).
    """

    rows: Float32[HostOrDevice, "emits shaping_fields"]
    blocks: Int32[HostOrDevice, "blocks block_fields"]
    numbers: Int32[HostOrDevice, " two"]


class Emitted(NamedTuple):
    """What came of them.

    Attributes:
        tokens: the target's own draw after each row.
        live: whether the row's own token is accepted, and so its draw counts.
        scores: the winning scores, for bitwise comparison.
        logprobs: zeros, unless some row wants them.
    """

    tokens: Int32[Array, " emits"]
    live: Bool[Array, " emits"]
    scores: Float32[Array, " emits"]
    logprobs: LogProbs


def body(
    network: Decoder, cache: Cache, window: BodyInput, *, in_loop: bool = False
) -> tuple[Float32[Array, "rows width"], Cache]:
    """Runs the layers over a window's rows; donates `cache`. `in_loop`: several windows in one call."""
    tokens, positions, pages, offsets, lanes = (jnp.asarray(window.rows)[:, i] for i in range(ROW_FIELDS))
    table = jnp.asarray(window.tiles)
    tiles = Tiles(
        rows=table[:, :TILE_ROWS],
        positions=table[:, TILE_ROWS:TILE_FIELDS],
        pages=table[:, TILE_FIELDS:],
        lane_of_row=lanes,
    )
    # Padding rows write to the scratch page.
    live = jnp.sum(pages != SCRATCH_PAGE, dtype=jnp.int32)
    recurrence = None
    if window.recurrence is not None:
        recurrence = Recurrence.unpacked(jnp.asarray(window.recurrence), rows=tokens.shape[0])
    rows = WindowRows(
        tokens=tokens,
        positions=positions,
        pages=pages,
        offsets=offsets,
        live=live,
        recurrence=recurrence,
        in_loop=in_loop,
    )
    return network.hidden(rows, tiles=tiles, cache=cache)


def emit(
    network: Decoder,
    hidden: Float32[Array, "rows width"],
    request: EmitInput,
    extras: EmitExtras,
    *,
    longest: int,
) -> Emitted:
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
    used, wants_logprobs = jnp.asarray(extras.numbers)
    shaping = Shaping(rows=jnp.asarray(extras.rows), blocks=jnp.asarray(extras.blocks), used=used)
    asked = jnp.sum(position != 0, dtype=jnp.int32)
    scores = network.scores(hidden[row], live=asked)
    share = Share.of(scores, axis=network.axis, vocabulary=network.config.vocabulary)
    shaped = shape_logits(scores, tokens=token, shaping=shaping, longest=longest, share=share)
    draws = draw(shaped, settings=settings, share=share)
    live = accept(draws.tokens, tokens=token, first=first == 1, longest=longest)
    # The head runs again for those who ask: keeping its first answer would cost everybody else a copy.
    logprobs = jax.lax.cond(
        wants_logprobs > 0,
        # Behind a barrier: the head's last product must not be contracted with what is done to it here.
        lambda: logprobs_of(jax.lax.optimization_barrier(network.logits(hidden[row], live=asked)), tokens=draws.tokens),
        lambda: no_logprobs(row.shape[0]),
    )
    return Emitted(tokens=draws.tokens, live=live, scores=draws.scores, logprobs=logprobs)


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
