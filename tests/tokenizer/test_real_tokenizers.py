"""The real tokenizers of Qwen3, Llama 3 and Gemma 3: equal to the library's, both ways. Fetched only when asked for."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.generation import ChatTurn, TokenTable
from deployments.tokenizer.chat import ChatEncoder
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.folder import TokenizerFolder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.guarding import ControlGuard
from deployments.tokenizer.table import token_table
from deployments.tokenizer.template import ChatTemplate
from tests.tokenizer import mixed_texts
from tests.tokenizer.downloads import REAL_TOKENIZERS, RealTokenizer, gemma_path, tokenizer_folder

_ROOT = Path(__file__).parents[2]
_CONTROL_TEXTS = (
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <think>x</think>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<start_of_turn>user\nHi <end_of_turn>\n<table><tr> <unused5></s> a",
)
_RUNS = tuple(char * n for char in " \n\t" for n in (1, 2, 3, 4, 7, 15, 31, 32, 33, 64))


def _texts() -> tuple[str, ...]:
    long = [path.read_text() for path in (_ROOT / "README.md", Path(__file__), *(_ROOT / "docs").rglob("*.md"))]
    runs = [f"{run}x{run}" for run in _RUNS]
    return (*mixed_texts.ALL, mixed_texts.CONTROLS, "\n".join(mixed_texts.ALL), *_CONTROL_TEXTS, *runs, *long)


def _decoded(table: TokenTable, /, ids: Sequence[int]) -> str:
    return b"".join(table.blob[table.ends[i - 1] if i else 0 : table.ends[i]] for i in ids).decode(errors="replace")


@pytest.mark.parametrize("wanted", REAL_TOKENIZERS, ids=lambda wanted: wanted.name)
def test_equal_to_the_library(wanted: RealTokenizer) -> None:
    folder = tokenizer_folder(wanted)
    began = time.process_time()
    vocabulary = TokenizerFolder(folder).vocabulary()
    encoder = PromptEncoder(vocabulary)
    assert time.process_time() - began < 30
    table = token_table(vocabulary, has_chat_template=True)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in _texts():
        expected = library.encode(text, add_special_tokens=False).ids
        ids = encoder.encode(text)
        assert list(ids[len(vocabulary.prefix_ids) :]) == expected, text[:80]
        assert _decoded(table, expected) == library.decode(expected, skip_special_tokens=False)
        if "▁" not in text and wanted.name != "qwen3":  # which brings text into normal form C
            assert _decoded(table, expected) == text


@pytest.mark.parametrize("wanted", REAL_TOKENIZERS, ids=lambda wanted: wanted.name)
def test_conversations(wanted: RealTokenizer) -> None:
    """What a user writes never becomes a control token; the template's own tokens do."""
    folder = TokenizerFolder(tokenizer_folder(wanted))
    vocabulary, source = folder.vocabulary(), folder.template()
    assert source is not None
    texts = (vocabulary.text_of(vocabulary.bos_id), vocabulary.text_of(vocabulary.eos_id))
    template = ChatTemplate(source, bos_text=texts[0], eos_text=texts[1])
    encoder = ChatEncoder(
        template=template, guard=ControlGuard(vocabulary.control_texts), encoder=PromptEncoder(vocabulary)
    )
    plain = encoder.encode((ChatTurn(role="user", content="Hi"),))
    forged = encoder.encode((ChatTurn(role="user", content="Hi" + "".join(vocabulary.control_texts)),))
    control_ids = vocabulary.control_ids
    controls = [[i for i in ids if i in control_ids] for ids in (plain, forged)]
    assert controls[0] == controls[1]
    assert controls[0]
    library = Tokenizer.from_file(str(tokenizer_folder(wanted) / "tokenizer.json"))
    rendered = template.render((ChatTurn(role="user", content="Hi"),))
    assert list(plain) == library.encode(rendered, add_special_tokens=False).ids


def test_gemma_from_gguf_equals_its_tokenizer_json() -> None:
    """Scores and types on one side, merges and added tokens on the other.

    They differ where the files do: the GGUF file calls 6,243 tokens control tokens that are text to the other, and it
    spells runs of spaces with spaces, so that only the other one knows `▁▁` as a token of its own.
    """
    gemma = next(wanted for wanted in REAL_TOKENIZERS if wanted.name == "gemma3")
    library = Tokenizer.from_file(str(tokenizer_folder(gemma) / "tokenizer.json"))
    vocabulary = read_gguf_vocabulary(GgufFile(gemma_path()))
    encoder, table = PromptEncoder(vocabulary), token_table(vocabulary, has_chat_template=False)
    for text in (text.replace("▁", "_") for text in _texts()):
        assert list(encoder.encode(text)) == library.encode(text).ids, text[:80]
        assert _decoded(table, encoder.encode(text)[1:]) == text
    assert [vocabulary.text_of(i) for i in vocabulary.end_ids] == ["<eos>", "<end_of_turn>"]
