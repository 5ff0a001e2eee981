"""Guesses at random: a drafter that is nearly always wrong, to prove that wrong guesses change no reply.

Used by the exactness checks and gates. Ignores what the request says.
"""

from dataclasses import dataclass
from random import Random

from deployments.lm.drafting.strategy import DraftShape, Proposal, StrategyTraits
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    """Tokens are drawn evenly from `range(vocab_size)`."""

    vocab_size: int
    seed: int = 0
    max_k: int = 8

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.max_k < 1:
            raise ConfigError("a random drafter needs a vocab_size and a max_k of at least 1")


class NoiseStrategy:
    """Proposes a full block every time. The same seed and sequence give the same guesses."""

    def __init__(self, settings: NoiseSettings, /) -> None:
        self._settings = settings
        self._state: dict[str, tuple[int, int]] = {}
        self.traits = StrategyTraits(kind="random", shape=DraftShape.CHAIN, needs_features=False, max_k=settings.max_k)

    def open(self, message: Open, /) -> None:
        self._state[message.request_id] = (len(message.prompt_ids), hash(message.prompt_ids))

    def commit(self, message: AcceptedPrefix, /) -> None:
        length, prompt = self._state[message.request_id]
        self._state[message.request_id] = (length + len(message.token_ids), prompt)

    def propose(self, request_id: str, /, *, k: int) -> Proposal:
        length, prompt = self._state[request_id]
        source = Random(f"{self._settings.seed}/{prompt}/{length}")
        count = min(k, self._settings.max_k)
        return Proposal(token_ids=tuple(source.randrange(self._settings.vocab_size) for _ in range(count)))

    def close(self, request_id: str, /) -> None:
        self._state.pop(request_id, None)
