"""What a request does to its logits before it draws: `min_tokens`, `logit_bias`, then penalties, in vLLM's order.

Repetition divides or multiplies the logits of tokens seen in prompt or reply (Keskar et al., 2019, "CTRL", as
transformers and vLLM have it); frequency and presence take away from those seen in the reply (OpenAI's API).

Stateless: whoever asks brings the history, as the distinct tokens of each chain with their counts. A chain is the rows
of one request, one after the other; each row adds the drafts before it, so that it sees the history its own prefix
implies. Rows of other chains are not touched, not even to be copied.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from deployments.lm.sampling.blocks import NO_TOKEN
from deployments.lm.sampling.share import Share, all_of

ENTRIES = 256
"""Tokens per block of a history."""

BLOCK_FIELDS = 2 + 3 * ENTRIES
ROW_FIELDS = 4
IN_PROMPT, IS_END, COUNT_SHIFT = 1, 2, 2


class Shaping(NamedTuple):
    """What some rows ask for.

    Attributes:
        rows: per row the penalties (repetition, presence, frequency) and whether ends are suppressed (1) or not (0).
        blocks: per block the first row of its chain, how many rows that has, and up to `ENTRIES` distinct tokens: their
            ids (`NO_TOKEN` for none), their marks (`IN_PROMPT`, `IS_END`, and how often each is in the reply, from
            bit `COUNT_SHIFT` on), and their biases as bit patterns. A token is in one block of its chain only.
        used: how many blocks there are; the rest is not read.
    """

    rows: Float32[Array, "rows fields"]
    blocks: Int32[Array, "blocks fields"]
    used: Int32[Array, ""]


def shape_logits(
    logits: Float32[Array, "rows vocabulary"],
    *,
    tokens: Int32[Array, " rows"],
    shaping: Shaping,
    longest: int,
    share: Share | None = None,
) -> Float32[Array, "rows vocabulary"]:
    """The logits as the requests want them.

    Args:
        tokens: each row's own token; a draft, except in a chain's first row.
        longest: the most drafts of a chain.
        share: which tokens the logits are of; `None` means all.
    """
    share = share or all_of(logits.shape[-1])

    def shaped_by(number: Int32[Array, ""], logits: Float32[Array, "rows vocabulary"]) -> Array:
        entries = _entries(shaping.blocks[number], places=jnp.arange(longest + 1, dtype=jnp.int32))
        # What lies beyond the last row is neither read nor written.
        rows = jnp.where(entries.is_row, entries.rows, logits.shape[0])[:, None]
        places = share.places(entries.ids, count=logits.shape[-1])[None, :]
        old = logits.at[rows, places].get(mode="fill", fill_value=0.0)
        own = tokens.at[rows[:, 0]].get(mode="fill", fill_value=NO_TOKEN)
        settings = shaping.rows.at[rows[:, 0]].get(mode="fill", fill_value=1.0)
        new = _shaped(old, entries=entries, drafts=own, settings=settings)
        return logits.at[rows, places].set(new, mode="drop")

    shaped: Float32[Array, "rows vocabulary"] = jax.lax.fori_loop(0, shaping.used, shaped_by, logits)
    return shaped


class _Entries(NamedTuple):
    rows: Int32[Array, " chain"]
    is_row: Bool[Array, " chain"]
    ids: Int32[Array, " entries"]
    in_prompt: Bool[Array, " entries"]
    is_end: Bool[Array, " entries"]
    counts: Int32[Array, " entries"]
    biases: Float32[Array, " entries"]


def _entries(block: Int32[Array, " fields"], *, places: Int32[Array, " chain"]) -> _Entries:
    ids, marks, biases = (block[2 + i * ENTRIES : 2 + (i + 1) * ENTRIES] for i in range(3))
    return _Entries(
        rows=block[0] + places,
        is_row=places < block[1],
        ids=ids,
        in_prompt=marks & IN_PROMPT > 0,
        is_end=marks & IS_END > 0,
        counts=marks >> COUNT_SHIFT,
        biases=jax.lax.bitcast_convert_type(biases, jnp.float32),
    )


def _shaped(
    logits: Float32[Array, "chain entries"],
    *,
    entries: _Entries,
    drafts: Int32[Array, " chain"],
    settings: Float32[Array, "chain fields"],
) -> Float32[Array, "chain entries"]:
    repetition, presence, frequency, suppresses = (settings[:, i : i + 1] for i in range(ROW_FIELDS))
    is_draft = (drafts[:, None] == entries.ids).at[0].set(False)
    counts = entries.counts + jnp.cumsum(is_draft.astype(jnp.int32), axis=0)
    logits = jnp.where((suppresses > 0) & entries.is_end, -jnp.inf, logits + entries.biases)
    penalised = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(entries.in_prompt | (counts > 0), penalised, logits)
    return logits - frequency * counts.astype(jnp.float32) - presence * (counts > 0).astype(jnp.float32)
