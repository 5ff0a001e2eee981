"""What int8 costs the real model, in perplexity over the programs that serve."""

from pathlib import Path

import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from tests.verifier.perplexity import CONTEXT, TOKENS, contexts, measure

MOST = 1.015


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_int8_costs_less_than_one_and_a_half_percent(smollm2_path: Path) -> None:
    over = contexts(GgufFile(smollm2_path), tokens=TOKENS)
    exact = measure(str(smollm2_path), precision=Precision.F32, over=over)
    assert exact.tokens >= 10_000
    assert exact.perplexity < 60
    for kernels in (Kernels.AUTO, Kernels.XLA):
        int8 = measure(str(smollm2_path), precision=Precision.INT8, kernels=kernels, over=over)
        print(f"{exact.tokens} tokens: f32 {exact.perplexity:.3f}, int8 {kernels} {int8.perplexity:.3f}")

        assert exact.tokens == int8.tokens
        assert int8.perplexity < MOST * exact.perplexity


def test_contexts_are_whole_and_differ(smollm2_path: Path) -> None:
    found = contexts(GgufFile(smollm2_path), tokens=TOKENS)

    assert {len(tokens) for tokens in found} == {CONTEXT}
    assert len(set(found)) == len(found) == -(-TOKENS // CONTEXT)
