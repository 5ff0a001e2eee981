"""One small model for all checks; only one engine runs on it at a time."""

from pathlib import Path

import pytest

from deployments.verifier.loading import LoadedModel
from tests.serve_app.gating.checks.small import small_model


@pytest.fixture(scope="session")
def model(golden_llama: Path) -> LoadedModel:
    return small_model(golden_llama / "llama.f16.gguf")
