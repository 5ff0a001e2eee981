"""How the engine asks for drafts, wherever they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from deployments.messages.generation import Decline, GenerateRequest


# A struct, not a dataclass: one is made for every request in every window.
class DraftWanted(msgspec.Struct, frozen=True, kw_only=True):
    """One request's part of a round.

    Attributes:
        sequence: the whole accepted sequence; the source sends on what its drafter does not have yet.
        accepted: how many of the last round's drafts were kept.
        k: at most so many drafts; at least 1.
    """

    request: GenerateRequest
    sequence: Sequence[int]
    k: int
    accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """What a round brought: drafts for some requests, a reason for each of the others.

    Attributes:
        tokens: chains, at most `k` long, never empty.
        kind: who drafted, as in `timings.draft_kind`.
    """

    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    declined: Mapping[str, Decline] = field(default_factory=dict)
    kind: str | None = None

    def cut(self, wanted: Sequence[DraftWanted], /) -> "Drafts":
        """The same without what is longer than wanted now: whoever was asked ahead may have been asked for more."""
        most = {item.request.request_id: item.k for item in wanted}
        if all(len(tokens) <= most[request_id] for request_id, tokens in self.tokens.items()):
            return self
        return replace(
            self, tokens={request_id: tokens[: most[request_id]] for request_id, tokens in self.tokens.items()}
        )


class DraftSource(Protocol):
    """Called by the engine's thread only. Never raises for a drafter's sake, never waits beyond its deadline."""

    def begin(self, request: GenerateRequest, /) -> None:
        """A request was admitted: its drafter may read the prompt while the target does."""

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        """Says ahead what the next `exchange` will want, so that drafters draft while the engine does other things."""

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        """One round: tells the drafters what was accepted and brings their drafts."""

    def close(self, request_id: str, /, *, reason: str) -> None:
        """The request ended."""


class NoDrafts:
    """The source of a verifier without a drafter."""

    def begin(self, request: GenerateRequest, /) -> None:
        del request

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        del wanted

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        return Drafts(declined={item.request.request_id: Decline.DISABLED_BY_OPERATOR for item in wanted})

    def close(self, request_id: str, /, *, reason: str) -> None:
        del request_id, reason
