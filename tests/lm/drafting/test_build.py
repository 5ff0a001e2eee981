"""Every kind of settings builds its drafter, and the drafter says what it is."""

from pathlib import Path

import pytest

from deployments.lm.drafting.build import StrategySettings, build_strategy
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.noise import NoiseSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.lm.drafting.strategy import DraftShape
from deployments.messages.drafting import Open
from deployments.messages.generation import SamplingSettings


@pytest.mark.parametrize("kind", ["ngram", "random", "oracle"])
def test_each_kind(kind: str, tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text("[[4, 4, 4, 4, 4, 4, 4, 4]]")
    settings: dict[str, StrategySettings] = {
        "ngram": NgramSettings(max_k=3),
        "random": NoiseSettings(vocab_size=9, max_k=3),
        "oracle": OracleSettings(path=str(truth), max_k=3),
    }
    strategy = build_strategy(settings[kind])
    assert strategy.traits.kind == kind
    assert strategy.traits.shape is DraftShape.CHAIN
    assert not strategy.traits.needs_features
    assert strategy.traits.max_k == 3
    strategy.open(Open(request_id="r", prompt_ids=(4, 4, 4), sampling=SamplingSettings(), choice=0, k_max=8))
    proposal = strategy.propose("r", k=8)
    assert len(proposal.token_ids) == 3
    assert proposal.parents is None
