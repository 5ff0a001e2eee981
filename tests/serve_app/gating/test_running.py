"""The key of what runs here: every fact is a part of it, and every part has a fact."""

import os
from pathlib import Path
from typing import Any

import pytest

from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.messages.errors import CheckpointError
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.keys import differences
from serve_app.gating.running import exactness_key, profit_key
from tests.serve_app.gating.programs import facts


@pytest.fixture
def hashes(tmp_path: Path) -> FileHashes:
    return FileHashes(tmp_path / "hashes")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("architecture", "qwen3"),
        ("precision", "bf16"),
        ("kernels", "xla"),
        ("page_size", 32),
        ("context", 1024),
        ("cache_pages", 128),
        ("ladder", (8, 16)),
        ("slots", 4),
        ("draft_k", 3),
        ("draft_rows", 4),
        ("devices", 4),
        ("topology", "2x2x1"),
        ("programs", "ef" * 32),
    ],
)
def test_a_fact_that_differs_is_a_part_that_differs(tmp_path: Path, hashes: FileHashes, part: str, value: Any) -> None:
    here = exactness_key(facts(tmp_path), hashes=hashes)
    there = exactness_key(facts(tmp_path, **{part: value}), hashes=hashes)
    (difference,) = differences(here, other=there)
    assert difference.split()[0] == part


def test_one_byte_of_the_model_makes_another_key(tmp_path: Path, hashes: FileHashes) -> None:
    here = exactness_key(facts(tmp_path), hashes=hashes)
    assert exactness_key(facts(tmp_path), hashes=hashes) == here
    (tmp_path / "model.gguf").write_bytes(b"GGUF and some weightz")
    (difference,) = differences(here, other=exactness_key(facts(tmp_path), hashes=hashes))
    assert difference.startswith("model ")


def test_what_the_compiler_is_told_is_a_part(
    tmp_path: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = exactness_key(facts(tmp_path), hashes=hashes)
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_fast_math=true")
    (difference,) = differences(here, other=exactness_key(facts(tmp_path), hashes=hashes))
    assert difference.startswith("flags ")


def test_an_accelerator_is_known_by_its_name(tmp_path: Path, hashes: FileHashes) -> None:
    key = exactness_key(facts(tmp_path, platform="tpu", device_kind="TPU v6e"), hashes=hashes)
    assert (key.chip.kind, key.chip.threads, key.chip.features) == ("TPU v6e", 0, ())
    assert exactness_key(facts(tmp_path), hashes=hashes).chip.threads > 0


def test_a_model_that_is_gone_is_named(tmp_path: Path, hashes: FileHashes) -> None:
    gone = facts(tmp_path, model_files=(str(tmp_path / "gone.gguf"),))
    with pytest.raises(CheckpointError, match=r"gone\.gguf"):
        exactness_key(gone, hashes=hashes)


def test_drafters_are_told_apart_by_their_settings_and_files(tmp_path: Path, hashes: FileHashes) -> None:
    program = exactness_key(facts(tmp_path), hashes=hashes)
    ngram = profit_key(program, kind="ngram", settings=NgramSettings(max_k=5), hashes=hashes)
    assert (ngram.k_max, ngram.drafter.placement) == (5, "remote")
    other = profit_key(program, kind="ngram", settings=NgramSettings(max_k=5, min_n=1), hashes=hashes)
    assert [text.split()[0] for text in differences(ngram, other=other)] == ["drafter.fingerprint"]
    known = tmp_path / "known.json"
    known.write_text("[]")
    settings = OracleSettings(path=str(known))
    oracle = profit_key(program, kind="oracle", settings=settings, hashes=hashes)
    known.write_text("[[1]]")
    assert profit_key(program, kind="oracle", settings=settings, hashes=hashes) != oracle
    # The program takes no more than it was compiled for.
    assert oracle.k_max == 7
