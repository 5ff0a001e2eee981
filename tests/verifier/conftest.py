"""Models loaded once for every test of the verifier that needs a real network."""

from functools import cache
from pathlib import Path
from typing import Protocol

import pytest

from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.verifier.calls import ChipSettings
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings


class LoadGolden(Protocol):
    """A golden network in some precision, with the kernels a verifier would take here or those asked for."""

    def __call__(self, precision: Precision, /, kernels: Kernels = Kernels.AUTO) -> LoadedModel: ...


@pytest.fixture(scope="session")
def load_golden(golden_llama: Path, golden_llama_rope3: Path) -> LoadGolden:
    """With 8 slots, pages of 16 and up to 7 drafts.

    In f32 the one with eight layers and every rung; else the one with four layers and fewer rungs.
    """

    @cache
    def load(precision: Precision, /, kernels: Kernels = Kernels.AUTO) -> LoadedModel:
        is_full = precision is Precision.F32
        path = golden_llama / "llama.f16.gguf" if is_full else golden_llama_rope3 / "llama_rope3.f32.gguf"
        settings = ModelSettings(
            model_path=str(path),
            precision=precision,
            kernels=kernels,
            slots=8,
            context=512,
            page_size=16,
            draft_k=7,
            ladder=(8, 16, 32, 64, 128) if is_full else (8, 16, 32),
        )
        return load_model(settings, progress=lambda text: None)

    return load


@pytest.fixture(scope="session")
def golden_on_chip(golden_llama_rope3: Path) -> LoadedModel:
    """In int8, with a drafter on its device: calls of up to 4 windows, of every width that decoding can need."""
    settings = ModelSettings(
        model_path=str(golden_llama_rope3 / "llama_rope3.f32.gguf"),
        precision=Precision.INT8,
        slots=8,
        context=512,
        page_size=16,
        draft_k=7,
        draft_rows=16,
        ladder=(8, 16, 32),
        chip=ChipSettings(drafter=NgramSettings(min_n=1, max_n=2, max_k=7), rounds=4),
    )
    return load_model(settings, progress=lambda text: None)
