"""Drafts from a strategy inside the verifier's own process (`placement: chip`): no socket, no deadline."""

from collections.abc import Sequence

from deployments.lm.drafting.strategy import Strategy
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.generation import Decline, GenerateRequest
from deployments.verifier.drafts import Drafts, DraftWanted


class OnboardDrafts:
    """A `DraftSource` over one strategy."""

    def __init__(self, strategy: Strategy, /) -> None:
        self._strategy = strategy
        self._lengths: dict[str, int] = {}

    def begin(self, request: GenerateRequest, /) -> None:
        # The first exchange opens it: in one process there is no time to be won.
        del request

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        # Nobody else could draft meanwhile.
        del wanted

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        tokens: dict[str, tuple[int, ...]] = {}
        declined: dict[str, Decline] = {}
        for item in wanted:
            self._bring_up_to_date(item)
            request_id = item.request.request_id
            guess = self._strategy.propose(request_id, k=item.k).token_ids[: item.k]
            if guess:
                tokens[request_id] = guess
            else:
                declined[request_id] = Decline.NO_GUESS
        return Drafts(tokens=tokens, declined=declined, kind=self._strategy.traits.kind)

    def close(self, request_id: str, /, *, reason: str) -> None:
        del reason
        if self._lengths.pop(request_id, None) is not None:
            self._strategy.close(request_id)

    def _bring_up_to_date(self, item: DraftWanted) -> None:
        request = item.request
        known = self._lengths.get(request.request_id)
        if known is None:
            self._strategy.open(
                Open(
                    request_id=request.request_id,
                    prompt_ids=request.prompt_ids,
                    sampling=request.sampling,
                    choice=request.choice,
                    k_max=self._strategy.traits.max_k,
                )
            )
            known = len(request.prompt_ids)
        fresh = tuple(item.sequence[known:])
        if fresh:
            self._strategy.commit(
                AcceptedPrefix(
                    request_id=request.request_id,
                    base_len=known,
                    token_ids=fresh,
                    accepted=item.accepted,
                    generation=0,
                    k=item.k,
                )
            )
        self._lengths[request.request_id] = len(item.sequence)
