"""The command: what it refuses, what it keeps, and what it gives the model to read."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deployments.messages.errors import ConfigError
from serve_app.benchmark.command import BenchOptions, run_command
from serve_app.benchmark.run import read_texts
from serve_app.cli import app
from serve_app.config import AppConfig


def test_texts_fit_the_context_and_mix_the_sorts(golden_llama: Path) -> None:
    config = AppConfig.model_validate({"model": str(golden_llama / "llama.f16.gguf"), "verifier": {"context": 512}})
    texts = read_texts(config, max_tokens=32)
    assert [workload.name for workload in texts.workloads] == ["chat", "copy"]
    assert all(workload.prompts and workload.max_tokens == 32 for workload in texts.workloads)
    assert len(texts.ids) > 2048
    assert len(set(texts.workloads[0].prompts)) == len(texts.workloads[0].prompts)
    with pytest.raises(ConfigError, match="raise --ctx"):
        read_texts(AppConfig.model_validate({**config.model_dump(), "verifier": {"context": 64}}), max_tokens=32)


def options(**changes: Any) -> BenchOptions:
    return BenchOptions(
        **{
            "is_quick": True,
            "json_file": None,
            "draft_k": 3,
            "slots": 8,
            "context": 2048,
            "precision": "f32",
            **changes,
        }
    )


def test_bad_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 128"):
        run_command("smollm2-135m", options=options(context=200))
    with pytest.raises(ConfigError, match="give --json another path"):
        run_command("smollm2-135m", options=options(json_file=tmp_path / "none" / "x.json"))


def test_a_run_that_fails_keeps_the_figures_of_the_last_one(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    figures.write_text("{}")
    with pytest.raises(ConfigError, match="is not a model"):
        run_command("no such model", options=options(json_file=figures))
    assert figures.read_text() == "{}"


def test_the_command_is_there() -> None:
    shown = CliRunner().invoke(app, ["bench", "--help"])
    assert shown.exit_code == 0
    assert "--quick" in shown.output
