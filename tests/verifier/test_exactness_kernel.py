"""Exact with the kernels of TPUs, run interpreted: whole networks, every rung, whatever is drafted.

Pages lie as they do on a chip, heads of 64 abreast, and recurrent layers run in their kernel. The reference is plain
decoding with the same kernels; how near that is to the plain path is for `tests/lm/kernels` to say.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings
from tests.verifier.comparing import DRAFTERS, MOST_DRAFTS, compared, requests_for, run, write_oracle

TOKENS = 48


def loaded(path: Path, *, precision: Precision) -> LoadedModel:
    settings = ModelSettings(
        model_path=str(path),
        precision=precision,
        kernels=Kernels.PALLAS_INTERPRETED,
        slots=8,
        context=512,
        page_size=16,
        draft_k=MOST_DRAFTS,
        ladder=(8, 16),
    )
    return load_model(settings, progress=lambda text: None)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("llama_rope3", Precision.INT8),
        pytest.param("gemma3", Precision.F32, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param("qwen3_5", Precision.F32, marks=pytest.mark.slow),
    ],
)
def test_replies_are_the_plain_ones_with_any_drafter(
    name: str, precision: Precision, goldens: Path, tmp_path: Path
) -> None:
    model = loaded(next((goldens / name).glob("*.gguf")), precision=precision)
    requests = [replace(request, max_tokens=TOKENS) for request in requests_for(goldens / "llama")]
    plain = run(model, requests, drafts=NoDrafts())
    oracle = write_oracle(tmp_path / "oracle.json", requests=requests, replies=plain)

    assert model.kernels is Kernels.PALLAS_INTERPRETED
    assert not model.report.refused
    for drafter in ("oracle", "random", "ngram-3"):
        replies = run(model, requests, drafts=DRAFTERS[drafter](oracle))
        assert compared(plain, replies) == sum(len(reply.tokens) for reply in plain.values())
        accepted = sum(reply.statistics.draft_n_accepted for reply in replies.values())
        assert (accepted > 100) if drafter == "oracle" else (drafter != "random" or accepted < 20)
    for request in requests:
        alone = run(model, [request], drafts=NoDrafts())
        assert compared(plain, alone) > 0
