"""Broken and small files for the tests of this room."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lm.checkpoint.making import write_small


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes bytes to a file that is named like a model."""

    def write(data: bytes) -> Path:
        path = tmp_path / "broken.gguf"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A GGUF file with a little of everything that one may hold."""
    return write_small(tmp_path_factory.mktemp("small") / "small.gguf")
