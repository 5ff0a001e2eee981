"""Several windows of drafts and verification in one device call. Knows rows and slots' pages, no requests.

Every window is `window.body` and `window.emit` over the very rows, tiles and draws that `packing.pack` lays out for the
same drafts, so it computes the same bits as a window of its own. What the host decides between two windows is decided
once for the call: who takes part, how many drafts each may have, and where its next tokens go.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float32, Int32

from deployments.lm.attention import TILE_ROWS
from deployments.lm.cache.layout import Cache
from deployments.lm.cache.pages import SCRATCH_PAGE
from deployments.lm.decoder import Decoder
from deployments.lm.drafting.chip import ChipDrafter, ChipDrafts
from deployments.verifier.calls import RoundsInput, RoundsOutput, RoundsSize
from deployments.verifier.window import BodyInput, EmitExtras, EmitInput, Emitted, Rung, body, emit


class _Standing(NamedTuple):
    """How far each slot is."""

    histories: Int32[Array, "slots context"]
    lengths: Int32[Array, " slots"]
    missing: Int32[Array, " slots"]
    goes_on: Bool[Array, " slots"]


class _Chains(NamedTuple):
    """The next window's rows: per slot its last token and its drafts, one slot after another.

    Attributes:
        tokens: the last token and the drafts, by slot.
        counts: rows by slot.
        first: number of each slot's first row.
        slot: of each row.
        place: of each row in its chain.
        is_row: whether it is one, not padding.
    """

    tokens: Int32[Array, "slots chain"]
    counts: Int32[Array, " slots"]
    first: Int32[Array, " slots"]
    slot: Int32[Array, " rows"]
    place: Int32[Array, " rows"]
    is_row: Bool[Array, " rows"]


def run_rounds(
    network: Decoder,
    cache: Cache,
    taken: RoundsInput,
    extras: EmitExtras,
    *,
    draft: ChipDrafter,
    size: RoundsSize,
    page_size: int,
) -> tuple[RoundsOutput, Cache]:
    """Drafts, verifies and appends until every slot has ended or there were as many rounds as asked for.

    Args:
        extras: ones that ask for nothing.
    """

    def one(carry: tuple[Cache, _Standing, RoundsOutput]) -> tuple[Cache, _Standing, RoundsOutput]:
        cache, standing, out = carry
        guess = draft(standing.histories, standing.lengths, _allowed(taken, standing=standing))
        chains = _chains(standing, guess, rows=size.rung.rows)
        window = _window(chains, standing=standing, pages=jnp.asarray(taken.pages), rung=size.rung, page_size=page_size)
        # Behind barriers a window is compiled as if it were alone.
        hidden, cache = body(network, _in_order(cache), jax.lax.optimization_barrier(window), in_loop=True)
        request = _request(chains, taken=taken, standing=standing, emits=size.emits)
        hidden, request = jax.lax.optimization_barrier((hidden, request))
        emitted = jax.lax.optimization_barrier(emit(network, hidden, request, extras, longest=size.longest))
        drawn, scores, live = _by_slot(emitted, chains=chains)
        after = _after(standing, drawn=drawn, live=live, ends=jnp.asarray(taken.ends))
        # A slot without a request or at its end has no drafts of its own.
        drafted = jnp.maximum(chains.counts - 1, 0)
        return (
            _in_order(cache),
            after,
            _noted(out, drawn=drawn, scores=scores, live=live, guess=guess.tokens, drafted=drafted),
        )

    def goes_on(carry: tuple[Cache, _Standing, RoundsOutput]) -> Bool[Array, ""]:
        _, standing, out = carry
        return jnp.any(standing.goes_on) & (out.ran < jnp.minimum(jnp.asarray(taken.most), size.most))

    start = _standing(taken)
    nothing = _nothing(size, slots=start.lengths.shape[0])
    cache, _, out = jax.lax.while_loop(goes_on, one, (cache, start, nothing))
    return out, cache


def _in_order(cache: Cache) -> Cache:
    """The same with its dimensions in memory as they are written: in a loop a TPU's compiler would choose an order of
    its own, and turn the whole cache around in every layer of every window."""
    return tuple(with_layout_constraint(layer, Layout(major_to_minor=tuple(range(layer.ndim)))) for layer in cache)


def _standing(taken: RoundsInput) -> _Standing:
    lengths, missing = (jnp.asarray(taken.ints)[:, i] for i in range(2))
    return _Standing(
        histories=jnp.asarray(taken.histories), lengths=lengths, missing=missing, goes_on=(lengths > 0) & (missing > 0)
    )


def _allowed(taken: RoundsInput, *, standing: _Standing) -> Int32[Array, " slots"]:
    """The most drafts of each slot: the last token of a reply is always the target's own."""
    most: Array = jnp.where(standing.goes_on, jnp.minimum(jnp.asarray(taken.ints)[:, 2], standing.missing - 1), 0)
    return most


def _chains(standing: _Standing, guess: ChipDrafts, *, rows: int) -> _Chains:
    counts = jnp.where(standing.goes_on, 1 + guess.counts, 0)
    last = jnp.take_along_axis(standing.histories, standing.lengths[:, None] - 1, axis=1, mode="clip")
    ends = jnp.cumsum(counts)
    numbers = jnp.arange(rows)
    slot = jnp.minimum(jnp.searchsorted(ends, numbers, side="right"), len(counts) - 1)
    first = ends - counts
    return _Chains(
        tokens=jnp.concatenate([last, guess.tokens], axis=1),
        counts=counts,
        first=first,
        slot=slot,
        place=numbers - first[slot],
        is_row=numbers < ends[-1],
    )


def _window(
    chains: _Chains, *, standing: _Standing, pages: Int32[Array, "slots slot_pages"], rung: Rung, page_size: int
) -> BodyInput:
    """As `packing.pack` does it; padding too."""
    tiles = -(-chains.counts // TILE_ROWS)
    tile_ends = jnp.cumsum(tiles)
    first_tile = tile_ends - tiles
    start = standing.lengths - 1
    slot, place, is_row = chains.slot, chains.place, chains.is_row
    positions = start[slot] + place
    page = jnp.take_along_axis(pages[slot], (positions // page_size)[:, None], axis=1, mode="clip")[:, 0]
    lanes = first_tile[slot] * TILE_ROWS + place
    rows = jnp.stack([chains.tokens[slot, place], positions, page, positions % page_size, lanes], axis=1)
    padding = jnp.asarray([0, 0, SCRATCH_PAGE, 0, 0], jnp.int32)

    numbers = jnp.arange(rung.tiles)
    owner = jnp.minimum(jnp.searchsorted(tile_ends, numbers, side="right"), len(tiles) - 1)
    is_tile = (numbers < tile_ends[-1])[:, None]
    within = (numbers - first_tile[owner])[:, None] * TILE_ROWS + jnp.arange(TILE_ROWS)[None, :]
    is_lane = is_tile & (within < chains.counts[owner][:, None])
    table = jnp.concatenate(
        [
            jnp.where(is_lane, chains.first[owner][:, None] + within, 0),
            jnp.where(is_lane, start[owner][:, None] + within, -1),
            jnp.where(is_tile, pages[owner], 0),
        ],
        axis=1,
    )
    return BodyInput(rows=jnp.where(is_row[:, None], rows, padding), tiles=table)


def _request(chains: _Chains, *, taken: RoundsInput, standing: _Standing, emits: int) -> EmitInput:
    """Every row draws."""
    numbers = jnp.arange(emits)
    rows = len(chains.slot)
    slot, place, is_row = (jnp.pad(x[:emits], (0, max(emits - rows, 0))) for x in chains[3:])
    own = jnp.asarray(taken.ints)[slot]
    ints = jnp.stack(
        [
            numbers,
            chains.tokens[slot, place],
            (place == 0).astype(jnp.int32),
            own[:, 3],
            own[:, 4],
            own[:, 5],
            standing.lengths[slot] + place,
        ],
        axis=1,
    )
    no_ints = jnp.asarray([0, 0, 1, 0, 0, 0, 0], jnp.int32)
    no_floats = jnp.asarray([0, 1, 0], jnp.float32)
    return EmitInput(
        ints=jnp.where(is_row[:, None], ints, no_ints),
        floats=jnp.where(is_row[:, None], jnp.asarray(taken.floats)[slot], no_floats),
    )


def _by_slot(
    emitted: Emitted, *, chains: _Chains
) -> tuple[Int32[Array, "slots chain"], Float32[Array, "slots chain"], Int32[Array, " slots"]]:
    """Draws and scores by slot, and how many of them count."""
    places = jnp.arange(chains.tokens.shape[1])[None, :]
    rows = jnp.minimum(chains.first[:, None] + places, len(emitted.tokens) - 1)
    is_own = places < chains.counts[:, None]
    drawn, scores = (jnp.where(is_own, part[rows], 0) for part in (emitted.tokens, emitted.scores))
    return drawn, scores, jnp.sum(is_own & emitted.live[rows], axis=1, dtype=jnp.int32)


def _after(
    standing: _Standing,
    *,
    drawn: Int32[Array, "slots chain"],
    live: Int32[Array, " slots"],
    ends: Int32[Array, "slots ends"],
) -> _Standing:
    """As `Slot.extend` does it: up to the first token that ends the reply, and no further than its length."""
    slots, chain = drawn.shape
    places = jnp.arange(chain)[None, :]
    is_end = jnp.any(drawn[:, :, None] == ends[:, None, :], axis=2) & (places < live[:, None])
    has_ended = jnp.any(is_end, axis=1)
    fresh = jnp.where(has_ended, jnp.argmax(is_end, axis=1).astype(jnp.int32), live)
    fresh = jnp.minimum(fresh, standing.missing)
    context = standing.histories.shape[1]
    # What is not part of the reply goes nowhere.
    targets = jnp.where(places < fresh[:, None], standing.lengths[:, None] + places, context)
    missing = standing.missing - fresh
    return _Standing(
        histories=standing.histories.at[jnp.arange(slots)[:, None], targets].set(drawn, mode="drop"),
        lengths=standing.lengths + fresh,
        missing=missing,
        goes_on=standing.goes_on & ~has_ended & (missing > 0),
    )


def _nothing(size: RoundsSize, *, slots: int) -> RoundsOutput:
    rounds, longest = size.most, size.longest
    return RoundsOutput(
        tokens=jnp.zeros((rounds, slots, longest + 1), jnp.int32),
        drafts=jnp.zeros((rounds, slots, longest), jnp.int32),
        drafted=jnp.zeros((rounds, slots), jnp.int32),
        live=jnp.zeros((rounds, slots), jnp.int32),
        scores=jnp.zeros((rounds, slots, longest + 1), jnp.float32),
        ran=jnp.zeros((), jnp.int32),
    )


def _noted(
    out: RoundsOutput,
    *,
    drawn: Int32[Array, "slots chain"],
    scores: Float32[Array, "slots chain"],
    live: Int32[Array, " slots"],
    guess: Int32[Array, "slots k"],
    drafted: Int32[Array, " slots"],
) -> RoundsOutput:
    at = out.ran
    return RoundsOutput(
        tokens=out.tokens.at[at].set(drawn),
        drafts=out.drafts.at[at].set(guess),
        drafted=out.drafted.at[at].set(drafted),
        live=out.live.at[at].set(live),
        scores=out.scores.at[at].set(scores),
        ran=at + 1,
    )
