"""Drafts that are right and wrong in turn: what finds a verifier that accepts a wrong one once in a thousand times.

A drafter that is always wrong is soon asked no more (`verifier.backoff`), so it puts few wrong drafts to the verifier.
This one is right in every fourth round, which is often enough to be asked in every window.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

from deployments.messages.generation import GenerateRequest
from deployments.verifier.backoff import MISSES
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted


class MixedDrafts:
    """A `DraftSource` over one that is always right.

    Args:
        vocabulary: wrong tokens are drawn from all others.
    """

    def __init__(self, right: DraftSource, /, *, vocabulary: int, seed: int) -> None:
        self._right = right
        self._vocabulary = vocabulary
        self._random = Random(seed)
        self._rounds: Counter[str] = Counter()

    def begin(self, request: GenerateRequest, /) -> None:
        self._right.begin(request)

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        self._right.ask(wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        drafts = self._right.exchange(wanted)
        tokens = {name: self._mixed(chain, request_id=name) for name, chain in drafts.tokens.items()}
        return Drafts(tokens=tokens, declined=drafts.declined, kind="mixed")

    def close(self, request_id: str, /, *, reason: str) -> None:
        self._rounds.pop(request_id, None)
        self._right.close(request_id, reason=reason)

    def _mixed(self, chain: tuple[int, ...], *, request_id: str) -> tuple[int, ...]:
        self._rounds[request_id] += 1
        if self._rounds[request_id] % MISSES == 0:
            return chain
        place = self._random.randrange(len(chain))
        wrong = (chain[place] + self._random.randrange(1, self._vocabulary)) % self._vocabulary
        return (*chain[:place], wrong, *chain[place + 1 :])
