"""The next window as the scheduler plans it: which rows of which slots. Data only."""

from dataclasses import dataclass

from deployments.lm.attention import TILE_ROWS
from deployments.verifier.slots import Slot
from deployments.verifier.states import Segment


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of one slot.

    Attributes:
        start: the absolute position of the first row.
        tokens: one per row.
        emits: how many of the last rows draw a token: none while a prompt goes on, one at its end, one more than
            there are drafts when decoding.
        segments: how they run through recurrent layers, with rows of earlier windows before them.
    """

    slot: Slot
    start: int
    tokens: tuple[int, ...]
    emits: int
    segments: tuple[Segment, ...] = ()

    @property
    def tiles(self) -> int:
        return -(-len(self.tokens) // TILE_ROWS)

    @property
    def drafts(self) -> int:
        return max(self.emits - 1, 0)


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The next window, span by span."""

    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(len(span.tokens) for span in self.spans)

    @property
    def tiles(self) -> int:
        return sum(span.tiles for span in self.spans)

    @property
    def emits(self) -> int:
        return sum(span.emits for span in self.spans)

    @property
    def speculates(self) -> bool:
        return any(span.drafts for span in self.spans)
