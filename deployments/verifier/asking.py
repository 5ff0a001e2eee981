"""Which requests may have drafts in the next window, and how many. Decides; the source brings them."""

from collections.abc import Iterable

from deployments.messages.generation import Decline
from deployments.messages.metrics import Metrics
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted
from deployments.verifier.slots import Slot


class DraftRounds:
    """One round per window, asked ahead where the window before it allows.

    Args:
        draft_k: the most drafts of one request; 0 never asks.
        draft_rows: the most drafts of all requests together; `None` sets no limit.
    """

    def __init__(self, source: DraftSource, *, draft_k: int, draft_rows: int | None, metrics: Metrics) -> None:
        self._source = source
        self._draft_k = draft_k
        self._draft_rows = draft_rows
        self._metrics = metrics
        self._has_asked = False

    def begin(self, slot: Slot, /) -> None:
        """The slot was admitted."""
        if self._draft_k and slot.request.speculation.enabled:
            self._source.begin(slot.request)

    def ask(self, slots: Iterable[Slot], /) -> None:
        """Drafters may begin: nothing that they depend on changes before `collect`."""
        decoding = [slot for slot in slots if slot.is_decoding]
        share = self._share(decoding)
        wanted = [self._wanted(slot, share=share) for slot in decoding if self._decline(slot, share=share) is None]
        if wanted:
            self._source.ask(wanted)
            self._has_asked = True

    def collect(self, slots: Iterable[Slot], /) -> Drafts:
        """The drafts for the next window; counts why there are none."""
        decoding = [slot for slot in slots if slot.is_decoding]
        share = self._share(decoding)
        wanted: list[DraftWanted] = []
        for slot in decoding:
            reason = self._decline(slot, share=share)
            if reason is None:
                wanted.append(self._wanted(slot, share=share))
            else:
                self.count_decline(slot, reason=reason)
        # A round that was begun is ended, even if whoever it was for has lost its slot since.
        has_asked, self._has_asked = self._has_asked, False
        return self._source.exchange(wanted).cut(wanted) if wanted or has_asked else Drafts()

    def close(self, request_id: str, /, *, reason: str) -> None:
        """The request is over."""
        self._source.close(request_id, reason=reason)

    def count_decline(self, slot: Slot, /, *, reason: Decline) -> None:
        """A window without a draft for this request."""
        slot.tally.declined[reason] += 1
        self._metrics.add("spec_decode_declined", labels=(reason.value,))

    def _share(self, decoding: list[Slot]) -> int:
        """The drafts one request may have beside as many others: rows cost most when there are many."""
        if self._draft_rows is None:
            return self._draft_k
        return min(self._draft_k, self._draft_rows // max(len(decoding), 1))

    def _wanted(self, slot: Slot, *, share: int) -> DraftWanted:
        limit = slot.request.speculation.max_draft
        k = min(share if limit is None else min(share, limit), slot.remaining - 1)
        return DraftWanted(request=slot.request, sequence=slot.tokens, accepted=slot.accepted, k=k)

    def _decline(self, slot: Slot, *, share: int) -> Decline | None:
        speculation = slot.request.speculation
        if self._draft_k == 0:
            return Decline.DISABLED_BY_OPERATOR
        if not speculation.enabled or speculation.max_draft == 0:
            return Decline.DISABLED_BY_REQUEST
        if slot.remaining <= 1:
            return Decline.LAST_TOKEN
        if not share:
            return Decline.LOAD
        return None if slot.backoff.may_guess else Decline.BACKING_OFF
