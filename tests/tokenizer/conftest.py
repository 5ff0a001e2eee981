"""Vocabularies to test with: the golden ones, and small GGUF files written to order."""

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.tokenizer.byte_level import byte_alphabet
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.vocabulary import Vocabulary

_DATA = Path(__file__).parent.parent / "data" / "tokenizer"

type Setting = str | int | bool | list[str] | list[int] | list[float] | None
type WriteVocabulary = Callable[..., Path]


@pytest.fixture(scope="session")
def golden_vectors() -> Path:
    """Twenty texts per vocabulary, with ids by `tokenizers` and by llama-server."""
    return _DATA / "tokenizer_vectors.json"


@pytest.fixture(scope="session")
def qwen2_vocabulary_path() -> Path:
    """The metadata of the golden qwen2 checkpoint, without its tensors."""
    return _DATA / "qwen2_vocabulary.gguf"


@pytest.fixture(scope="session")
def golden_vocabulary(golden_llama: Path) -> Vocabulary:
    return read_gguf_vocabulary(GgufFile(golden_llama / "llama.f16.gguf"))


@pytest.fixture
def write_vocabulary(tmp_path: Path) -> WriteVocabulary:
    """Writes a GGUF file of 256 bytes, `ab` and four special tokens.

    Keyword arguments replace metadata (`ggml__pre` is `tokenizer.ggml.pre`); `None` leaves it out.
    """

    def write(**changes: Setting) -> Path:
        specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
        settings: dict[str, Setting] = {
            "ggml.model": "gpt2",
            "ggml.pre": "smollm",
            "ggml.tokens": [*(byte_alphabet()[byte] for byte in range(256)), "ab", *specials],
            "ggml.token_type": [1] * 257 + [3, 3, 3, 4],
            "ggml.merges": ["a b"],
            "ggml.bos_token_id": 257,
            "ggml.eos_token_id": 259,
            "chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        }
        settings |= {name.replace("__", "."): value for name, value in changes.items()}
        return _write(tmp_path / "small.gguf", settings=settings)

    return write


def _write(path: Path, /, *, settings: dict[str, Setting]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in settings.items():
        key = f"tokenizer.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
