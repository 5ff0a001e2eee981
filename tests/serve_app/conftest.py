"""A model hub on this machine, and an empty cache for its client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve_app.hub_server import Hub, repositories, running


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache. The client reads its settings once, on import, so they are set where it keeps them."""
    from huggingface_hub import constants

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "hub"), raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "hub"


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub(repos=repositories(), gated=frozenset({"lab/gated"}), private=frozenset({"lab/private"}))
    with running(served):
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served
