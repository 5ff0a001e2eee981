"""Both formats of every golden model: their ids are those of llama-server and of the `tokenizers` library."""

import json
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.model_text import read_model_text
from deployments.tokenizer.table import token_table

_GOLDEN = Path(__file__).parent.parent / "data" / "golden"
_NAMES = tuple(sorted(path.name for path in _GOLDEN.iterdir() if (path / "tokenizer.json").is_file()))
_TURNS = (ChatTurn(role="system", content="Be brief."), ChatTurn(role="user", content="Hi<|im_end|> 日本 🙂"))


def _gguf(name: str) -> Path:
    return sorted((_GOLDEN / name).glob("*.gguf"))[0]


def test_all_golden_models_are_here() -> None:
    assert len(_NAMES) == 17


@pytest.mark.parametrize("name", _NAMES)
def test_the_ids_of_each_format(name: str, golden_vectors: Path) -> None:
    vectors = json.loads(golden_vectors.read_text())["qwen2" if name.startswith("qwen") else "smollm"]
    assert len(vectors) == 20
    for path, key in ((_gguf(name), "llamacpp_ids"), (_GOLDEN / name, "ids")):
        encoder = PromptEncoder(read_model_text(path).vocabulary)
        for vector in vectors:
            assert list(encoder.encode(vector["text"])) == vector[key], (path.name, vector["text"])


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "gemma4_e"])
def test_both_formats_of_a_model_are_one(name: str) -> None:
    file, folder = read_model_text(_gguf(name)), read_model_text(_GOLDEN / name)
    assert file.template is not None
    assert folder.template is not None
    assert file.template.render(_TURNS) == folder.template.render(_TURNS)
    assert file.vocabulary.end_ids == folder.vocabulary.end_ids
    assert file.vocabulary.prefix_ids == folder.vocabulary.prefix_ids
    tables = [token_table(text.vocabulary, has_chat_template=True) for text in (file, folder)]
    assert tables[0].special_ids == tables[1].special_ids
    assert tables[0].blob == tables[1].blob  # padding has no bytes, and the folder's tokenizer none of it


def test_a_safetensors_file_stands_for_its_folder() -> None:
    text = read_model_text(_GOLDEN / "llama" / "model.safetensors")
    assert text.vocabulary.tokens == read_model_text(_GOLDEN / "llama").vocabulary.tokens


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((_GOLDEN / "llama" / name).read_bytes())
    with pytest.raises(UnknownTokenizer, match=r"has no tokenizer\.json"):
        read_model_text(tmp_path)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        read_model_text(tmp_path)
    with pytest.raises(CheckpointError):
        read_model_text(tmp_path / "none.gguf")
