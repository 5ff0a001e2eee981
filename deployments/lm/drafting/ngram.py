"""Copy from the conversation: find the last few tokens earlier in the request, propose what followed them there.

The method is prompt lookup decoding (A. Saxena, 2023), also known from "Inference with Reference" (Yang et al., 2023,
arXiv:2304.04487). Knows token ids only; no text, no model.
"""

from dataclasses import dataclass

from deployments.lm.drafting.strategy import DraftShape, Proposal, StrategyTraits
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError

_MOST_N = 16
_MOST_K = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSettings:
    """How to look up.

    Attributes:
        max_n: the longest run of tokens that is looked for; it is tried first.
        min_n: the shortest; runs shorter than this are taken for chance.
        max_k: the most tokens one proposal copies.
    """

    max_n: int = 3
    min_n: int = 2
    max_k: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n <= _MOST_N:
            raise ConfigError(
                f"n-gram lengths {self.min_n} to {self.max_n} cannot be looked up; "
                f"give 1 <= min_n <= max_n <= {_MOST_N}"
            )
        if not 1 <= self.max_k <= _MOST_K:
            raise ConfigError(f"an n-gram drafter cannot copy {self.max_k} tokens; give max_k from 1 to {_MOST_K}")


class NgramIndex:
    """The tokens of one request, and for each n-gram in them the place of the token that last followed it.

    Appending a token costs one dictionary entry per length n, and a look-up costs one per length tried, however long
    the request is.
    """

    def __init__(self, *, min_n: int, max_n: int) -> None:
        self._tokens: list[int] = []
        self._followers: list[tuple[int, dict[tuple[int, ...], int]]] = [(n, {}) for n in range(max_n, min_n - 1, -1)]

    def extend(self, token_ids: tuple[int, ...], /) -> None:
        """Appends tokens.

        An n-gram enters the index only when a token follows it. So the run at the very end never finds itself, and
        of several earlier places the latest remains: nearby text is the likelier to be continued alike, and inside a
        loop it is the latest place that has the loop's period.
        """
        start = len(self._tokens)
        self._tokens.extend(token_ids)
        tokens = self._tokens
        for n, follower in self._followers:
            for place in range(max(start, n), len(tokens)):
                follower[tuple(tokens[place - n : place])] = place

    def continuation(self, *, k: int) -> tuple[int, ...]:
        """The `k` tokens that followed the latest earlier occurrence of the longest known suffix, or none.

        A copy that reaches the end of the request goes on in what it has copied, which continues a repetition
        ("a b a b" -> "a b a b ...") for as many tokens as are wanted.
        """
        place = self._find()
        if place is None:
            return ()
        known = tuple(self._tokens[place : place + k])
        if len(known) == k:
            return known
        return (known * (k // len(known) + 1))[:k]

    def _find(self) -> int | None:
        for n, follower in self._followers:
            if n <= len(self._tokens):
                place = follower.get(tuple(self._tokens[-n:]))
                if place is not None:
                    return place
        return None


class NgramStrategy:
    """A drafter that copies from each request's own tokens."""

    def __init__(self, settings: NgramSettings, /) -> None:
        self._settings = settings
        self._indexes: dict[str, NgramIndex] = {}
        self.traits = StrategyTraits(kind="ngram", shape=DraftShape.CHAIN, needs_features=False, max_k=settings.max_k)

    def open(self, message: Open, /) -> None:
        index = NgramIndex(min_n=self._settings.min_n, max_n=self._settings.max_n)
        index.extend(message.prompt_ids)
        self._indexes[message.request_id] = index

    def commit(self, message: AcceptedPrefix, /) -> None:
        self._indexes[message.request_id].extend(message.token_ids)

    def propose(self, request_id: str, /, *, k: int) -> Proposal:
        return Proposal(token_ids=self._indexes[request_id].continuation(k=min(k, self._settings.max_k)))

    def close(self, request_id: str, /) -> None:
        self._indexes.pop(request_id, None)
