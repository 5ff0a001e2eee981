"""Ids back to bytes: every byte, every kind of token, and text in many scripts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.generation import TokenTable
from deployments.tokenizer.byte_level import byte_alphabet
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.table import token_table
from deployments.tokenizer.vocabulary import TokenType, Vocabulary
from tests.tokenizer import mixed_texts

type WriteVocabulary = Callable[..., Path]


def _bytes(table: TokenTable, /, ids: tuple[int, ...]) -> bytes:
    return b"".join(table.blob[table.ends[i - 1] if i else 0 : table.ends[i]] for i in ids)


def test_the_alphabet_gives_every_byte_its_own_visible_character() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert (alphabet[0x20], alphabet[0x0A], alphabet[0x41], alphabet[0xAD]) == ("Ġ", "Ċ", "A", "Ń")
    assert not any(char.isspace() or ord(char) < 0x21 for char in alphabet.values())


def test_every_byte_has_its_token(golden_vocabulary: Vocabulary) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    singles = {_bytes(table, (i,)) for i in range(len(table.ends))}
    assert singles >= {bytes([byte]) for byte in range(256)}


def test_each_kind_of_token(write_vocabulary: WriteVocabulary) -> None:
    small = read_gguf_vocabulary(GgufFile(write_vocabulary()))
    kinds = {
        "Ġx": TokenType.NORMAL,
        "<|Ġ|>": TokenType.CONTROL,
        "Ġ Ġ": TokenType.USER_DEFINED,
        "[PAD]": TokenType.UNUSED,
        "<0x0A>": TokenType.BYTE,
        "日本": TokenType.NORMAL,
        "<unk>": TokenType.UNKNOWN,
    }
    tokens = [*small.tokens, *kinds]
    types = [*(int(kind) for kind in small.types), *(int(kind) for kind in kinds.values())]
    vocabulary = read_gguf_vocabulary(GgufFile(write_vocabulary(ggml__tokens=tokens, ggml__token_type=types)))
    table = token_table(vocabulary, has_chat_template=False)
    first = len(small.tokens)
    pieces = [_bytes(table, (i,)) for i in range(first, first + len(kinds))]
    assert pieces == [b" x", "<|Ġ|>".encode(), "Ġ Ġ".encode(), b"", b"\n", "日本".encode(), b"<unk>"]
    assert table.special_ids == {257, 258, 259, first + 1, first + 6}
    assert table.end_ids == vocabulary.end_ids
    assert not table.has_chat_template


@pytest.mark.parametrize("text", [*mixed_texts.ALL, mixed_texts.CONTROLS, "\n".join(mixed_texts.ALL)])
def test_round_trip(golden_vocabulary: Vocabulary, text: str) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    assert _bytes(table, PromptEncoder(golden_vocabulary).encode(text)) == text.encode()


def test_round_trip_of_anything(golden_vocabulary: Vocabulary) -> None:
    table = token_table(golden_vocabulary, has_chat_template=True)
    encoder = PromptEncoder(golden_vocabulary)

    @given(st.text())
    def check(text: str) -> None:
        assert _bytes(table, encoder.encode(text)) == text.encode()

    check()


def test_smollm2_round_trip_but_for_six_control_characters(smollm2_path: Path) -> None:
    vocabulary = read_gguf_vocabulary(GgufFile(smollm2_path))
    table = token_table(vocabulary, has_chat_template=True)
    encoder = PromptEncoder(vocabulary)
    for text in mixed_texts.ALL:
        assert _bytes(table, encoder.encode(text)) == text.encode()
    lost = [char for char in mixed_texts.CONTROLS if _bytes(table, encoder.encode(char)) != char.encode()]
    assert lost == ["\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"]
