"""Stores of both kinds, a Redis of one's own for those that need it, and a small model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.verifier.loading import LoadedModel
from tests.serve_app.gating.benches import Bench, FileBench, RedisBench
from tests.serve_app.gating.checks.small import small_model
from tests.serve_app.gating.redis_server import RedisServer


@pytest.fixture(scope="session")
def model(golden_llama: Path) -> LoadedModel:
    """One small model for all of them; only one engine runs on it at a time."""
    return small_model(golden_llama / "llama.f16.gguf")


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that writes every change down, so that it comes back with it."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, options=("--appendonly", "yes", "--appendfsync", "always"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def file_bench(tmp_path: Path) -> FileBench:
    return FileBench(tmp_path)


@pytest.fixture
def redis_bench(redis_server: RedisServer) -> RedisBench:
    return RedisBench(redis_server)


@pytest.fixture(params=["file", "redis"])
def bench(request: pytest.FixtureRequest) -> Bench:
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found
