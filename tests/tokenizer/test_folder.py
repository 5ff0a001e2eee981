"""Model folders: which file counts, what a missing or broken one costs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.messages.errors import CheckpointError, UnknownTemplate, UnknownTokenizer
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.folder import TokenizerFolder

type WriteFolder = Callable[..., TokenizerFolder]

_END, _TEXT_END, _START = 499, 497, 498


@pytest.fixture
def write(golden_llama: Path, tmp_path: Path) -> WriteFolder:
    """A copy of the golden folder's small files.

    Args:
        files: by name with `__` for a dot: what to replace in it, a text to write instead, or `None` to leave it out.
    """

    def write(**files: dict[str, Any] | str | None) -> TokenizerFolder:
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
            shutil.copy(golden_llama / name, tmp_path / name)
        for name, change in files.items():
            path = tmp_path / name.replace("__", ".")
            if change is None:
                path.unlink()
            elif isinstance(change, str):
                path.write_text(change)
            else:
                path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | change))
        return TokenizerFolder(tmp_path)

    return write


def test_a_folder_as_it_is(write: WriteFolder) -> None:
    folder = write()
    vocabulary = folder.vocabulary()
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.prefix_ids) == (None, _END, ())
    assert vocabulary.end_ids == (_END, _TEXT_END)
    assert vocabulary.control_ids == {_TEXT_END, _START, _END}
    template = folder.template()
    assert template is not None
    assert "<|im_start|>" in template


def test_a_folder_without_a_tokenizer(write: WriteFolder) -> None:
    with pytest.raises(UnknownTokenizer, match=r"has no tokenizer\.json; add the one .* or use a GGUF file"):
        write(tokenizer__json=None)


def test_the_other_files_may_be_missing(write: WriteFolder) -> None:
    folder = write(tokenizer_config__json=None, generation_config__json=None, config__json=None)
    vocabulary = folder.vocabulary()
    assert (vocabulary.eos_id, vocabulary.end_ids) == (None, (_TEXT_END, _END))
    assert folder.template() is None


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config__json": {"eos_token_id": [3, 498]}}, (3, 498, 499, 497)),
        ({"generation_config__json": {"eos_token_id": None}, "config__json": {"eos_token_id": 7}}, (7, 499, 497)),
        (
            {
                "generation_config__json": None,
                "config__json": {"eos_token_id": None, "text_config": {"eos_token_id": [8]}},
            },
            (8, 499, 497),
        ),
        ({"generation_config__json": {"eos_token_id": 5}, "config__json": {"eos_token_id": 7}}, (5, 499, 497)),
    ],
)
def test_what_ends_a_reply(write: WriteFolder, files: dict[str, Any], ids: tuple[int, ...]) -> None:
    assert write(**files).vocabulary().end_ids == ids


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config__json": {"bos_token": "<|endoftext|>", "add_bos_token": True}},
        {"tokenizer_config__json": {"bos_token": {"content": "<|endoftext|>", "lstrip": False}, "add_bos_token": True}},
        {
            "tokenizer_config__json": {"add_bos_token": True},
            "special_tokens_map__json": {"bos_token": {"content": "<|endoftext|>"}},
        },
    ],
)
def test_the_first_token(write: WriteFolder, files: dict[str, Any]) -> None:
    vocabulary = write(**files).vocabulary()
    assert (vocabulary.bos_id, vocabulary.prefix_ids) == (_TEXT_END, (_TEXT_END,))


def test_a_first_token_without_a_name_is_refused(write: WriteFolder) -> None:
    with pytest.raises(CheckpointError, match="asks for a beginning-of-text token and names none"):
        write(tokenizer_config__json={"add_bos_token": True}).vocabulary()


def test_tokens_that_only_the_configuration_has(write: WriteFolder) -> None:
    extra = {"500": {"content": "<tool>", "special": False}, "501": {"content": "<|x|>", "special": True}}
    vocabulary = write(tokenizer_config__json={"added_tokens_decoder": extra}).vocabulary()
    assert PromptEncoder(vocabulary).encode("a<tool>b<|x|>") == (64, 500, 65, 501)
    assert 501 in vocabulary.control_ids
    assert 500 not in vocabulary.control_ids


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"chat_template__jinja": "file"}, "file"),
        ({"tokenizer_config__json": {"chat_template": None}, "chat_template__json": {"chat_template": "old"}}, "old"),
        ({"chat_template__json": {"chat_template": "old"}, "tokenizer_config__json": {"chat_template": "own"}}, "own"),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "plain"},
                    ]
                }
            },
            "plain",
        ),
        ({"tokenizer_config__json": {"chat_template": [{"name": "rag", "template": "only"}]}}, "only"),
        ({"tokenizer_config__json": {"chat_template": None}}, None),
    ],
)
def test_which_template_counts(write: WriteFolder, files: dict[str, Any], source: str | None) -> None:
    assert write(**files).template() == source


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ([{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], r"\(a, b\) is called 'default'"),
        ([{"name": "default", "template": 7}], "is called 'default'"),
        ([{"name": "default"}], "is called 'default'"),
        ([7], "is called 'default'"),
        ({"a": "b"}, "'chat_template' is not a text"),
    ],
)
def test_templates_that_are_none(write: WriteFolder, template: object, words: str) -> None:
    with pytest.raises(UnknownTemplate, match=words):
        write(tokenizer_config__json={"chat_template": template}).template()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer__json": "{"}, r"tokenizer\.json cannot be read .*download it again"),
        ({"tokenizer__json": "[]"}, r"tokenizer\.json cannot be read .*expected an object"),
        ({"tokenizer__json": "[" * 200_000}, r"tokenizer\.json cannot be read .*nested too deep"),
        ({"tokenizer__json": "version https://git-lfs.github.com/spec/v1"}, r"tokenizer\.json cannot be read"),
        ({"tokenizer_config__json": "\x00"}, r"tokenizer_config\.json cannot be read"),
        ({"generation_config__json": "nul"}, r"generation_config\.json cannot be read"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"x": {}}}}, "not a table of tokens by id"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"5": 5}}}, "not a table of tokens by id"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"9" * 5000: {"content": "<x>"}}}}, "largest id"),
        ({"generation_config__json": {"eos_token_id": 5000}}, "beyond the 500"),
    ],
)
def test_broken_files_are_named(write: WriteFolder, files: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        write(**files).vocabulary()
    assert len(str(caught.value)) < 400


def test_a_file_of_absurd_size_is_not_read(write: WriteFolder, tmp_path: Path) -> None:
    folder = write()
    with (tmp_path / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="larger than any"):
        folder.vocabulary()
