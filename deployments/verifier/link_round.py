"""One round with all drafters: what was asked, what is known, who still owes an answer. Pure; no socket."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.messages.drafting import DraftBlock
from deployments.messages.generation import Decline
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link_peer import Peer

type Outcome = DraftBlock | Decline


@dataclass(slots=True, kw_only=True)
class Round:
    """Begun by `ask` or by `exchange`, ended by `exchange`.

    Attributes:
        waiting: for which requests each drafter still owes an answer.
        spent_s: what the engine's thread has spent on it so far.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    waiting: dict[Peer, set[str]] = field(default_factory=dict)
    spent_s: float = 0.0
    _asked: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, turn: DraftWanted, /) -> None:
        """`turn` is part of the round as it stands now."""
        self._asked[turn.request.request_id] = _state(turn)

    def narrow(self, turns: Sequence[DraftWanted], /) -> list[DraftWanted]:
        """Forgets what was asked and is not wanted any more; returns what is wanted and was not asked."""
        fresh = [turn for turn in turns if self._asked.get(turn.request.request_id) != _state(turn)]
        if len(turns) - len(fresh) < len(self._asked):
            kept = {turn.request.request_id for turn in turns} - {turn.request.request_id for turn in fresh}
            for owed in self.waiting.values():
                owed &= kept
            # Whoever owes nothing any more is not waited for.
            self.waiting = {peer: owed for peer, owed in self.waiting.items() if owed}
            self.outcomes = {name: outcome for name, outcome in self.outcomes.items() if name in kept}
        return fresh


def _state(turn: DraftWanted) -> tuple[int, int]:
    return len(turn.sequence), turn.k
