"""What was measured: numbers, and what follows from them alone. Knows no keys and no verdicts."""

import math
from typing import Annotated

import msgspec

from serve_app.gating.keys import Count, Name, Number

type Amount = Annotated[float, msgspec.Meta(ge=0)]
type Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Difference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reply first differs.

    Attributes:
        prompt: the name of the question.
        position: of the token in the reply, from 0.
        wanted: the plain reply's token; `None` where that had ended.
        got: the other's.
    """

    prompt: Name
    position: Number
    wanted: int | None
    got: int | None

    def __str__(self) -> str:
        wanted, got = ("the end" if token is None else f"token {token}" for token in (self.wanted, self.got))
        return f"prompt {self.prompt}, position {self.position}: {wanted} was wanted, {got} came"


class DrafterProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replies with one drafter against the plain ones, token by token.

    Attributes:
        tokens: compared.
        drafts, accepted: how many were verified, and kept.
        first: the first difference, if there is any.
    """

    tokens: Number
    mismatches: Number
    drafts: Number
    accepted: Number
    first: Difference | None = None

    def __post_init__(self) -> None:
        if self.accepted > self.drafts:
            raise ValueError(f"{self.accepted} drafts cannot be accepted of {self.drafts}")
        if bool(self.mismatches) != (self.first is not None):
            raise ValueError("the first difference is given where, and only where, there are mismatches")


class ExactnessEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the proof of a program found.

    Attributes:
        drafters: by name: real ones by their kind, `random`, `oracle`, `mixed` of both, and `off` for none in a batch.
        rungs: row counts of the windows that were shown to compute the same bits.
        refused: why each other one may not be used, by its row count.
    """

    drafters: dict[Name, DrafterProof] = {}
    rungs: tuple[Count, ...] = ()
    refused: dict[Count, str] = {}

    @property
    def tokens(self) -> int:
        return sum(proof.tokens for proof in self.drafters.values())

    @property
    def mismatches(self) -> int:
        return sum(proof.mismatches for proof in self.drafters.values())

    @property
    def drafts(self) -> int:
        return sum(proof.drafts for proof in self.drafters.values())

    @property
    def first(self) -> Difference | None:
        """The first difference of the first drafter that has one."""
        return next((proof.first for proof in self.drafters.values() if proof.first is not None), None)


class Ratio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative over plain speed, pair by pair of alternating runs."""

    median: Amount
    min: Amount
    max: Amount

    def __post_init__(self) -> None:
        _check_finite(self.median, self.min, self.max)
        if not self.min <= self.median <= self.max:
            raise ValueError(f"a median of {self.median} does not lie between {self.min} and {self.max}")


class ProfitPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of active slots, at the best K.

    Attributes:
        active: slots with a request.
        k: drafts asked for; the best of those tried.
        plain_tokens_s, speculative_tokens_s: medians, over all active slots together.
        pairs: alternating runs, warm-up not counted.
        rounds: windows with drafts.
        acceptance: per position of a draft, how often it was accepted where it was verified at all.
        plain_window_ms, window_ms: medians of a window without drafts and with them.
        drafter_ms: the median from asking for drafts to having them.
        by_k: the median ratio for each K tried.
    """

    active: Count
    k: Count
    plain_tokens_s: Amount
    speculative_tokens_s: Amount
    ratio: Ratio
    pairs: Count
    rounds: Number
    acceptance: tuple[Share, ...] = ()
    plain_window_ms: Amount = 0.0
    window_ms: Amount = 0.0
    drafter_ms: Amount = 0.0
    by_k: dict[Count, Amount] = {}

    def __post_init__(self) -> None:
        _check_finite(
            self.plain_tokens_s,
            self.speculative_tokens_s,
            self.plain_window_ms,
            self.window_ms,
            self.drafter_ms,
            *self.acceptance,
            *self.by_k.values(),
        )

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a window with `k` drafts gives a request on average: one, and the drafts accepted in a row."""
        kept = 1.0
        total = 1.0
        for share in self.acceptance[: self.k]:
            kept *= share
            total += kept
        return total


class ProfitEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of a pairing, fewest active slots first."""

    points: tuple[ProfitPoint, ...] = ()

    def __post_init__(self) -> None:
        numbers = [point.active for point in self.points]
        if sorted(set(numbers)) != numbers:
            raise ValueError(f"numbers of active slots must rise, each once, and these are {numbers}")

    @property
    def best(self) -> ProfitPoint | None:
        """The point with the largest median ratio."""
        return max(self.points, key=lambda point: point.ratio.median, default=None)


def _check_finite(*values: float) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError("a measured number must be finite")
