import json
import shutil
from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from serve_app.inspecting.tokens import TokenizerFacts, read_tokenizer


def test_metadata(golden_llama: Path) -> None:
    found = read_tokenizer(open_checkpoint(golden_llama / "llama.f16.gguf"))

    assert found == TokenizerFacts(kind="gpt2 / smollm", size=512, source="metadata", has_template=True)


@pytest.fixture
def folder(golden_llama: Path, tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden_llama / name, tmp_path / name)
    return tmp_path


def test_folder(golden_llama: Path) -> None:
    found = read_tokenizer(open_checkpoint(golden_llama))

    assert found == TokenizerFacts(kind="BPE", size=500, source="tokenizer.json", has_template=True)


def test_nothing(folder: Path) -> None:
    assert read_tokenizer(open_checkpoint(folder)) == TokenizerFacts(
        kind=None, size=None, source="none", has_template=False
    )


def test_sentencepiece_alone(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"pieces")
    (folder / "chat_template.jinja").write_text("{{ messages }}")

    assert read_tokenizer(open_checkpoint(folder)) == TokenizerFacts(
        kind="SentencePiece", size=None, source="tokenizer.model", has_template=True
    )


def test_added_tokens_count_once(folder: Path) -> None:
    vocabulary = {"a": 0, "b": 1, "<end>": 2}
    added = [{"id": 2, "content": "<end>"}, {"id": 3, "content": "<start>"}, "nonsense"]
    whole = {"model": {"vocab": vocabulary}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(whole))

    found = read_tokenizer(open_checkpoint(folder))

    assert (found.kind, found.size) == ("BPE", 4)


def test_unigram_has_a_list(folder: Path) -> None:
    whole = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}, "added_tokens": [{"id": 1}, {"id": 2}]}
    (folder / "tokenizer.json").write_text(json.dumps(whole))

    found = read_tokenizer(open_checkpoint(folder))

    assert (found.kind, found.size) == ("Unigram", 3)


@pytest.mark.parametrize("content", ["[" * 100_000, "not json", "[]", '{"model": 7}', '{"model": {"vocab": 7}}'])
def test_damaged_files_say_nothing(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(content)

    assert not read_tokenizer(open_checkpoint(folder)).has_template


def test_names_are_fit_for_a_terminal(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "\x1b[2J" + "x" * 500, "vocab": {}}}))

    kind = read_tokenizer(open_checkpoint(folder)).kind

    assert kind is not None
    assert kind.startswith("?[2Jx")
    assert len(kind) == 64
