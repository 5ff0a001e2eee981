"""Random guesses: full blocks, in the vocabulary, the same again for the same seed and sequence."""

from collections import Counter

import pytest

from deployments.lm.drafting.noise import NoiseSettings, NoiseStrategy
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError
from deployments.messages.generation import SamplingSettings

OPEN = Open(request_id="r", prompt_ids=(1, 2, 3), sampling=SamplingSettings(), choice=0, k_max=8)


def test_every_token_of_the_vocabulary_comes_up_and_no_other() -> None:
    strategy = NoiseStrategy(NoiseSettings(vocab_size=5, max_k=7))
    strategy.open(OPEN)
    seen: Counter[int] = Counter()
    for length in range(3, 60):
        guess = strategy.propose("r", k=20).token_ids
        assert len(guess) == 7
        seen.update(guess)
        strategy.commit(AcceptedPrefix(request_id="r", base_len=length, token_ids=(4,), accepted=0, generation=1, k=7))
    assert set(seen) == set(range(5))


def test_the_same_seed_and_sequence_give_the_same_guess() -> None:
    first, second, other = (NoiseStrategy(NoiseSettings(vocab_size=50_000, seed=seed)) for seed in (1, 1, 2))
    for strategy in (first, second, other):
        strategy.open(OPEN)
    assert first.propose("r", k=8) == first.propose("r", k=8) == second.propose("r", k=8)
    assert first.propose("r", k=8) != other.propose("r", k=8)


def test_a_closed_request_is_forgotten() -> None:
    strategy = NoiseStrategy(NoiseSettings(vocab_size=5))
    strategy.open(OPEN)
    strategy.close("r")
    with pytest.raises(KeyError):
        strategy.propose("r", k=1)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError):
        NoiseSettings(vocab_size=0)
