"""What every drafter is: tokens of a request go in, a guess at the next ones comes out.

Knows neither sockets nor connections; who calls it guarantees that commits are contiguous. Which strategy runs is
decided once, in `build`; afterwards a difference is a method or a field of `StrategyTraits`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from deployments.messages.drafting import AcceptedPrefix, Open


class DraftShape(StrEnum):
    """How the tokens of one proposal hang together."""

    CHAIN = "chain"
    BLOCK = "block"
    TREE = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyTraits:
    """What a caller must know about a strategy before it uses it.

    Attributes:
        kind: the name shown to people, as in `timings.draft_kind`.
        needs_features: commits must carry the target's hidden states.
        max_k: the most tokens it proposes at once.
    """

    kind: str
    shape: DraftShape
    needs_features: bool
    max_k: int


# A struct, not a dataclass: one is made for every answer, and this takes a quarter of the time.
class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A guess at the tokens that follow. Empty when there is nothing to guess.

    Attributes:
        parents: for trees, the index of each token's parent or -1; `None` for a chain.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...] | None = None


class Strategy(Protocol):
    """Drafts for many requests at once. Not thread-safe; one caller."""

    @property
    def traits(self) -> StrategyTraits: ...

    def open(self, message: Open, /) -> None:
        """Begins a request, or begins it again: whatever was known under this id is replaced."""

    def commit(self, message: AcceptedPrefix, /) -> None:
        """Appends `message.token_ids`. The caller has checked that `base_len` is the current length.

        Raises:
            KeyError: the request is not open.
        """

    def propose(self, request_id: str, /, *, k: int) -> Proposal:
        """At most `min(k, max_k)` tokens to follow what was committed. Changes nothing a later call can see.

        Raises:
            KeyError: the request is not open.
        """

    def close(self, request_id: str, /) -> None:
        """Forgets a request. An unknown one is not an error."""
