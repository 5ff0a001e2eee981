"""What is refused before Ray starts."""

import json
import shutil
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, ConfigError
from serve_app.model_check import check_model


@pytest.mark.parametrize("model", ["llama/llama.f16.gguf", "qwen3_5"])
def test_a_whole_model_passes(goldens: Path, model: str) -> None:
    check_model(goldens / model, context=512)


def test_a_context_that_the_model_was_not_made_for(goldens: Path) -> None:
    with pytest.raises(ConfigError, match="made for 512; lower --ctx"):
        check_model(goldens / "qwen3", context=2048)


def test_a_folder_without_a_tokenizer(goldens: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(goldens / "qwen3" / name, tmp_path / name)

    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        check_model(tmp_path, context=256)


def test_an_unknown_network(goldens: Path, tmp_path: Path) -> None:
    shutil.copytree(goldens / "qwen3", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "abacus"}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match="is a 'abacus' model; this version runs"):
        check_model(tmp_path, context=256)
