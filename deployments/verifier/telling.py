"""What is said and counted of a window that landed, while the device works on the next one. Knows no programs."""

from deployments.messages.generation import TokenChunk
from deployments.messages.metrics import Metrics
from deployments.verifier.asking import DraftRounds
from deployments.verifier.delivery import Advance, Delivery
from deployments.verifier.drafts import Drafts
from deployments.verifier.plan import Span
from deployments.verifier.slots import Slot


class Telling:
    """Turns what a window did to a request into what whoever waits for it is told.

    Args:
        rounds: are told of requests that ended, and count windows without drafts.
    """

    def __init__(self, *, rounds: DraftRounds, metrics: Metrics, caches_prefixes: bool) -> None:
        self._rounds = rounds
        self._metrics = metrics
        self._caches_prefixes = caches_prefixes

    def delivery(self, step: Advance, /, *, drafts: Drafts, now: float) -> Delivery:
        """The chunk for one request, counted."""
        slot, drawn, fresh, finish = step.span.slot, step.drawn, step.fresh, step.finish
        if step.is_first:
            self._count_prompt(slot)
        else:
            self._tally(step.span, kept=drawn.kept, drafts=drafts)
        self._metrics.add("generation_tokens", amount=len(fresh))
        chunk = TokenChunk(
            token_ids=fresh,
            finish_reason=finish,
            statistics=slot.statistics(now=now),
            logprobs=None if drawn.logprobs is None else drawn.logprobs[: len(fresh)],
        )
        if finish is not None:
            self._rounds.close(slot.request.request_id, reason=finish.value)
            self._metrics.add("requests_finished", labels=(finish.value,))
        return Delivery(request_id=slot.request.request_id, chunk=chunk)

    def _tally(self, span: Span, *, kept: int, drafts: Drafts) -> None:
        slot = span.slot
        declined = drafts.declined.get(slot.request.request_id)
        if declined is not None:
            self._rounds.count_decline(slot, reason=declined)
        if span.drafts:
            slot.tally.rounds[(span.drafts, kept)] += 1
            slot.tally.draft_kind = drafts.kind
            self._metrics.add("spec_decode_num_drafts")
            self._metrics.add("spec_decode_num_draft_tokens", amount=span.drafts)
            self._metrics.add("spec_decode_num_accepted_tokens", amount=kept)
            for position in range(kept):
                self._metrics.add("spec_decode_num_accepted_tokens_per_pos", labels=(str(position),))

    def _count_prompt(self, slot: Slot) -> None:
        if slot.request.cache_prompt and self._caches_prefixes:
            self._metrics.add("prefix_cache_queries", amount=len(slot.request.prompt_ids))
            self._metrics.add("prefix_cache_hits", amount=slot.reused)
