import subprocess
import sys
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, ConfigError
from serve_app.catalog import DEFAULT_MODEL, SMOLLM2_135M
from serve_app.model_fetch import default_cache_dir, resolve_model, served_name

WEIGHTS = b"GGUF" + bytes(range(256)) * 64


def test_known_name_is_the_cached_file(smollm2_path: Path, tmp_path: Path) -> None:
    """The real file has the checksum written down for it."""
    (tmp_path / SMOLLM2_135M.member).symlink_to(smollm2_path.resolve())

    assert resolve_model(DEFAULT_MODEL, cache_dir=tmp_path).resolve() == smollm2_path.resolve()


def test_local_path(tmp_path: Path) -> None:
    file = tmp_path / "owner:odd name.gguf"
    file.write_bytes(WEIGHTS)

    assert resolve_model(str(file)) == file


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_local_folder_and_what_is_in_it(goldens: Path, name: str) -> None:
    path = goldens / "qwen3" / name

    assert resolve_model(str(path)) == path


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("qwen3-8b", "qwen3-8b"),
        ("Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B@main", "Qwen/Qwen3-8B"),
        ("lab/name:file.gguf", "lab/name"),
        (".", None),
        ("nothing", None),
        ("somewhere/file.gguf", None),
    ],
)
def test_what_clients_call_it(spec: str, name: str | None) -> None:
    assert served_name(spec) == name


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("no/such/file.gguf", CheckpointError, "there is no file no/such/file.gguf"),
        ("./file.gguf", CheckpointError, "there is no file file.gguf"),
        ("no/such.safetensors", CheckpointError, "there is no file no/such.safetensors"),
        ("qwen3-9b", ConfigError, r"'qwen3-9b' is not a model \(did you mean .*qwen3-8b.*'outrider models'"),
        ("", ConfigError, "'' is not a model"),
        ("a" * 300, ConfigError, "is not a model"),
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
