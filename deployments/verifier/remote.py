"""Drafts from replicas of the drafter deployment (`placement: remote`), as the engine asks for them.

Knows neither sockets nor deadlines; those are the links'.
"""

from collections.abc import Sequence

from deployments.messages.drafting import DraftBlock
from deployments.messages.generation import Decline, GenerateRequest
from deployments.verifier.drafts import Drafts, DraftWanted
from deployments.verifier.links import DrafterLinks


class RemoteDrafts:
    """A `DraftSource` over the links to the drafters there are."""

    def __init__(self, links: DrafterLinks, /) -> None:
        self._links = links

    def begin(self, request: GenerateRequest, /) -> None:
        self._links.begin(request)

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        self._links.ask(wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        kind = self._links.kind
        tokens: dict[str, tuple[int, ...]] = {}
        declined: dict[str, Decline] = {}
        for request_id, outcome in self._links.exchange(wanted).items():
            if isinstance(outcome, DraftBlock):
                tokens[request_id] = outcome.token_ids
            else:
                declined[request_id] = outcome
        return Drafts(tokens=tokens, declined=declined, kind=kind)

    def close(self, request_id: str, /, *, reason: str) -> None:
        self._links.close(request_id, reason=reason)
