"""The native kernels, built once for the tests that ask for them; skipped, saying why, where they cannot be had."""

from pathlib import Path

import pytest

from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels


@pytest.fixture(scope="session")
def native() -> None:
    chosen, reason = choose_kernels(Kernels.AUTO, cache=Path.home() / ".cache" / "outrider" / "kernels")
    if chosen is not Kernels.NATIVE:
        pytest.skip(f"no native kernels here: {reason}")
