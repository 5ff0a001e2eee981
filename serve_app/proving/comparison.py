"""Replies beside the plain ones, token by token. Pure; knows no drafter and no server."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from deployments.messages.generation import FinishReason, GenerationStatistics


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A whole reply."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    statistics: GenerationStatistics


type Replies = Mapping[str, Reply]
"""By the name of what was asked."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first place at which a reply is not the plain one.

    Attributes:
        position: index in the reply.
        got, plain: token ids; `None` where the reply has ended.
    """

    name: str
    position: int
    got: int | None
    plain: int | None

    def __str__(self) -> str:
        got, plain = ("the end" if token is None else f"token {token}" for token in (self.got, self.plain))
        if self.got == self.plain:
            return f"{self.name}: the reply ends after {self.position} tokens for another reason than the plain one"
        return f"{self.name}, position {self.position}: {got}, but plain decoding gave {plain}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Attributes: `tokens` is how many were compared, `mismatches` how many of them differ."""

    replies: int
    tokens: int
    mismatches: int
    first: Difference | None


def compare(replies: Replies, /, *, plain: Replies) -> Comparison:
    """Every reply against the plain one of the same name, which must be there.

    A reply that is too long or too short differs in the tokens that one of the two lacks, and one that ends for
    another reason differs in its end.
    """
    tokens = mismatches = 0
    first: Difference | None = None
    for name, reply in replies.items():
        ours, theirs = reply.token_ids, plain[name].token_ids
        tokens += max(len(ours), len(theirs))
        wrong = [place for place, (got, want) in enumerate(zip_longest(ours, theirs)) if got != want]
        if not wrong and reply.finish_reason != plain[name].finish_reason:
            wrong = [len(ours)]
        mismatches += len(wrong)
        if wrong and first is None:
            first = Difference(name=name, position=wrong[0], got=_at(ours, wrong[0]), plain=_at(theirs, wrong[0]))
    return Comparison(replies=len(replies), tokens=tokens, mismatches=mismatches, first=first)


def _at(tokens: tuple[int, ...], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None
