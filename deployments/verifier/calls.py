"""Device calls of several rounds of drafts and verification: their sizes, what they take and what they bring.

Data only; `rounds` says what they compute.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32

from deployments.lm.drafting.ngram import NgramSettings
from deployments.verifier.history import MOST_ENDS
from deployments.verifier.ladder import Ladder
from deployments.verifier.window import Rung

SLOT_INTS = 6
SLOT_FLOATS = 3

type HostOrDevice = Array | np.ndarray


@dataclass(frozen=True, kw_only=True)
class ChipSettings:
    """A drafter on the verifier's device.

    Attributes:
        rounds: the most windows of one device call.
    """

    drafter: NgramSettings
    rounds: int = 4


@dataclass(frozen=True, order=True, kw_only=True)
class RoundsSize:
    """What one program of rounds is compiled for.

    Attributes:
        rung, emits: the windows' sizes; they must hold the rows of all slots with all their drafts, which all draw.
        longest: the most drafts of a slot.
        most: rounds for which there is room in what a call returns.
    """

    rung: Rung
    emits: int
    longest: int
    most: int


class RoundsInput(NamedTuple):
    """What a call takes, by slot; few arrays, since each one costs a transfer.

    Attributes:
        histories: accepted tokens; zeros after them.
        pages: page tables that hold every position the call can reach.
        ints: per slot how many tokens it has (0 where there is no request), how many are missing to its `max_tokens`,
            the most drafts it may have, `top_k`, seed, and choice (the last two as bit patterns).
        floats: temperature, `top_p`, `min_p`.
        ends: tokens that end the reply; -1 is padding.
        most: of rounds.
    """

    histories: Int32[HostOrDevice, "slots context"]
    pages: Int32[HostOrDevice, "slots slot_pages"]
    ints: Int32[HostOrDevice, "slots slot_ints"]
    floats: Float32[HostOrDevice, "slots slot_floats"]
    ends: Int32[HostOrDevice, "slots ends"]
    most: Int32[HostOrDevice, ""]


class RoundsOutput(NamedTuple):
    """What came of it, round by round; rounds that were not run are zeros.

    Attributes:
        tokens: the target's own draws; as many count as `live` says.
        drafts: what was guessed; as many count as `drafted` says.
        live: draws that count, one more than drafts that were kept; 0 where the slot took no part.
        scores: the winning scores, for bitwise comparison.
        ran: how many rounds there were.
    """

    tokens: Int32[Array, "rounds slots chain"]
    drafts: Int32[Array, "rounds slots k"]
    drafted: Int32[Array, "rounds slots"]
    live: Int32[Array, "rounds slots"]
    scores: Float32[Array, "rounds slots chain"]
    ran: Int32[Array, ""]


@dataclass(frozen=True, kw_only=True)
class ChipRounds:
    """What a verifier's device calls of several rounds are compiled for.

    Attributes:
        sizes: smallest first.
    """

    drafter: NgramSettings
    sizes: tuple[RoundsSize, ...]


def calls_for(ladder: Ladder, /, *, chip: ChipSettings, longest: int, most_rows: int) -> ChipRounds:
    """One program for each rung that decoding rows can need.

    Args:
        longest: the most drafts of a slot.
        most_rows: of a window in which everybody decodes.
    """
    needed = [rung for rung in ladder.rungs if rung.rows < most_rows]
    needed = [*needed, *ladder.rungs[len(needed) : len(needed) + 1]]
    sizes = (
        RoundsSize(rung=rung, emits=ladder.emits_for(min(rung.rows, most_rows)), longest=longest, most=chip.rounds)
        for rung in needed
    )
    return ChipRounds(drafter=chip.drafter, sizes=tuple(sizes))


def rounds_taken(*, slots: int, context: int, slot_pages: int) -> RoundsInput:
    """What a program takes, without its values."""

    def shape(*numbers: int, dtype: DTypeLike = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(numbers, dtype)

    return RoundsInput(
        histories=shape(slots, context),
        pages=shape(slots, slot_pages),
        ints=shape(slots, SLOT_INTS),
        floats=shape(slots, SLOT_FLOATS, dtype=jnp.float32),
        ends=shape(slots, MOST_ENDS),
        most=shape(),
    )
