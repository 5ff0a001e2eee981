"""How the engine asks for drafts, wherever they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deployments.messages.generation import Decline, GenerateRequest


@dataclass(frozen=True, kw_only=True)
class DraftWanted:
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


class DraftSource(Protocol):
    """Called by the engine's thread only. Never raises for a drafter's sake, never waits beyond its deadline."""

    def begin(self, request: GenerateRequest, /) -> None:
        """A request was admitted: its drafter may read the prompt while the target does."""

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        """One round: tells the drafters what was accepted and brings their drafts."""

    def close(self, request_id: str, /, *, reason: str) -> None:
        """The request ended."""


class NoDrafts:
    """The source of a verifier without a drafter."""

    def begin(self, request: GenerateRequest, /) -> None:
        del request

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        return Drafts(declined={item.request.request_id: Decline.DISABLED_BY_OPERATOR for item in wanted})

    def close(self, request_id: str, /, *, reason: str) -> None:
        del request_id, reason
