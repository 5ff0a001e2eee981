"""Which requests may have drafts in the next window, and how many. Decides; the source brings them."""

from collections.abc import Callable, Iterable

import msgspec

from deployments.messages.gates import SpeculationRule
from deployments.messages.generation import Decline
from deployments.messages.metrics import Metrics
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted
from deployments.verifier.slots import Slot

type Rules = Callable[[], SpeculationRule]
"""Answers the rule of this moment; called in every window."""


# A struct, not a dataclass: one is made for every request in every call.
class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoding slot may have while the rule of one moment holds.

    Attributes:
        k: the most drafts in its next window.
        declined: why it is 0, if it is.
    """

    slot: Slot
    k: int
    declined: Decline | None = None


class DraftRounds:
    """One round per window, asked ahead where the window before it allows.

    The rule is read anew for each half of a round: what was asked ahead under another rule is cut, or not used.

    Args:
        draft_k: the most drafts of one request; 0 never asks.
        draft_rows: the most drafts of all requests together; `None` sets no limit.
        rules: may allow less than that, window by window.
    """

    def __init__(
        self, source: DraftSource, *, draft_k: int, draft_rows: int | None, metrics: Metrics, rules: Rules
    ) -> None:
        self._source = source
        self._draft_k = draft_k
        self._draft_rows = draft_rows
        self._metrics = metrics
        self._rules = rules
        self._has_asked = False

    def begin(self, slot: Slot, /) -> None:
        """The slot was admitted."""
        # A drafter that is let in later is told of the request then.
        if self._draft_k and slot.request.speculation.enabled and self._rules().kind is not None:
            self._source.begin(slot.request)

    def ask(self, slots: Iterable[Slot], /) -> None:
        """Drafters may begin: nothing that they depend on changes before `collect`, but for the rule."""
        room = self._room(slots)
        wanted = [self._wanted(slot, room=room) for slot in room.decoding if self._decline(slot, room=room) is None]
        if wanted:
            self._source.ask(wanted)
            self._has_asked = True

    def collect(self, slots: Iterable[Slot], /) -> Drafts:
        """The drafts for the next window; counts why there are none."""
        room = self._room(slots)
        wanted: list[DraftWanted] = []
        for slot in room.decoding:
            reason = self._decline(slot, room=room)
            if reason is None:
                wanted.append(self._wanted(slot, room=room))
            else:
                self.count_decline(slot, reason=reason)
        # A round that was begun is ended, even if whoever it was for has lost its slot since.
        has_asked, self._has_asked = self._has_asked, False
        return self._source.exchange(wanted).cut(wanted) if wanted or has_asked else Drafts()

    def allowances(self, slots: Iterable[Slot], /) -> list[Allowance]:
        """For windows whose drafts come from elsewhere; nothing is counted."""
        room = self._room(slots)
        found: list[Allowance] = []
        for slot in room.decoding:
            declined = self._decline(slot, room=room)
            k = self._most(slot, room=room) if declined is None else 0
            found.append(Allowance(slot=slot, k=k, declined=declined))
        return found

    def close(self, request_id: str, /, *, reason: str) -> None:
        """The request is over."""
        self._source.close(request_id, reason=reason)

    def count_decline(self, slot: Slot, /, *, reason: Decline) -> None:
        """A window without a draft for this request."""
        slot.tally.declined[reason] += 1
        self._metrics.add("spec_decode_declined", labels=(reason.value,))

    def _room(self, slots: Iterable[Slot]) -> "_Room":
        held = list(slots)
        decoding = [slot for slot in held if slot.is_decoding]
        rule = self._rules()
        allowed = min(self._draft_k, rule.k_for(len(held)))
        # Rows cost most when there are many.
        rows = allowed if self._draft_rows is None else self._draft_rows // max(len(decoding), 1)
        return _Room(
            decoding=decoding,
            share=min(allowed, rows),
            refusal=None if self._draft_k == 0 else _refusal(rule, active=len(held)),
        )

    def _wanted(self, slot: Slot, *, room: "_Room") -> DraftWanted:
        k = self._most(slot, room=room)
        return DraftWanted(request=slot.request, sequence=slot.tokens, accepted=slot.accepted, k=k)

    def _most(self, slot: Slot, *, room: "_Room") -> int:
        limit = slot.request.speculation.max_draft
        return min(room.share if limit is None else min(room.share, limit), slot.remaining - 1)

    def _decline(self, slot: Slot, *, room: "_Room") -> Decline | None:
        speculation = slot.request.speculation
        if self._draft_k == 0:
            return Decline.DISABLED_BY_OPERATOR
        if not speculation.enabled or speculation.max_draft == 0:
            return Decline.DISABLED_BY_REQUEST
        if room.refusal is not None:
            return room.refusal
        if slot.remaining <= 1:
            return Decline.LAST_TOKEN
        if not room.share:
            return Decline.LOAD
        return None if slot.backoff.may_guess else Decline.BACKING_OFF


# A struct, not a dataclass: one is made twice in every window.
class _Room(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule and the rows leave for drafts at one moment.

    Attributes:
        share: the drafts one request may have beside as many others.
        refusal: why nobody may have any, by the rule.
    """

    decoding: list[Slot]
    share: int
    refusal: Decline | None


def _refusal(rule: SpeculationRule, *, active: int) -> Decline | None:
    if rule.kind is None:
        return Decline(rule.reason)
    if rule.k_for(active):
        return None
    # Below what was measured to pay nothing is known either, and it is not the load that forbids it.
    return Decline.NOT_FASTER if active < _fewest(rule) else Decline.TOO_MANY_SLOTS


def _fewest(rule: SpeculationRule) -> int:
    return next((active for active, k in enumerate(rule.k_by_active_slots, start=1) if k), 0)
