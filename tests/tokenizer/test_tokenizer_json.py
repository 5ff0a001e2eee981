"""`tokenizer.json`: ids equal to the library's own, control tokens that only the encoder makes, files that lie."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.table import token_table
from deployments.tokenizer.tokenizer_json import Named, read_tokenizer_json
from deployments.tokenizer.vocabulary import Spelling, TokenType
from tests.tokenizer import mixed_texts
from tests.tokenizer.small_tokenizer import TOKENS, Change, metaspace, read_small, setting, small_file, the_library

_TEXTS = (
    *("ab", " ab", "ab  ab", "<s>ab", "a<|user|>ab", "a <|user|> ab", "a<think>ab", " <think> ab"),
    *("é中\n", "<|user|>", "<unk>b", "a</s>", "<s><s>", "<s", *mixed_texts.ALL, mixed_texts.CONTROLS),
)


def _stripping(file: dict[str, Any]) -> None:
    file["added_tokens"][3] |= {"lstrip": True, "rstrip": True}
    file["added_tokens"][4] |= {"lstrip": True, "single_word": True}


def _pairs(file: dict[str, Any]) -> None:
    file["model"]["merges"] = [merge.split(" ") for merge in file["model"]["merges"]]


def _normalized(file: dict[str, Any]) -> None:
    file["normalizer"] = {"type": "NFC"}
    file["added_tokens"][4] |= {"normalized": True}


@pytest.mark.parametrize(
    "change",
    [None, metaspace("always"), metaspace("first"), metaspace("never"), _stripping, _pairs, _normalized],
    ids=["prepend", "always", "first", "never", "strip", "pairs", "nfc"],
)
def test_ids_are_the_librarys(change: Change | None) -> None:
    file = small_file(change)
    vocabulary = read_small(file)
    encoder, library = PromptEncoder(vocabulary), the_library(file)
    assert vocabulary.prefix_ids == (1,)
    for text in _TEXTS:
        ids = library.encode(text, add_special_tokens=False).ids
        assert list(encoder.encode(text)) == (ids if ids[:1] == [1] else [1, *ids]), text


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3"])
def test_the_golden_files(name: str, golden_llama: Path) -> None:
    """Also text that is not in normal form C, which the Qwen file asks to be brought into it."""
    path = golden_llama.parent / name / "tokenizer.json"
    vocabulary = read_tokenizer_json(json.loads(path.read_bytes()), named=Named(texts={}), source=name)
    encoder, library = PromptEncoder(vocabulary), Tokenizer.from_file(str(path))
    for text in (*_TEXTS, "<|im_start|>user\ne\u0301<|im_end|>", "\u1100\u1161 \u212b"):
        assert list(encoder.encode(text)) == library.encode(text, add_special_tokens=False).ids


def test_bytes_are_what_the_library_decodes() -> None:
    file = small_file()
    table, library = token_table(read_small(file), has_chat_template=False), the_library(file)
    for text in _TEXTS:
        ids = library.encode("a" + text, add_special_tokens=False).ids
        spelled = b"".join(table.blob[table.ends[i - 1] if i else 0 : table.ends[i]] for i in ids)
        assert spelled.decode().removeprefix(" ") == library.decode(ids, skip_special_tokens=False)


def test_what_is_read() -> None:
    vocabulary = read_small(small_file(), end_ids=(300,))
    assert vocabulary.spelling is Spelling.SENTENCEPIECE
    assert vocabulary.control_texts == {"<unk>": 0, "<s>": 1, "</s>": 2, "<|user|>": 300}
    assert vocabulary.ids_of(TokenType.USER_DEFINED) == {301}
    assert vocabulary.ids_of(TokenType.BYTE) == set(range(3, 259))
    assert vocabulary.ids_of(TokenType.UNUSED) == set(range(len(TOKENS), 300))
    assert (len(vocabulary.tokens), vocabulary.bos_id, vocabulary.eos_id) == (302, 1, 2)
    assert vocabulary.end_ids == (300, 2)


@pytest.mark.parametrize(("add_bos", "prefix"), [(True, (1,)), (False, ()), (None, (1,))])
def test_the_first_token(add_bos: bool | None, prefix: tuple[int, ...]) -> None:
    assert read_small(small_file(), add_bos=add_bos).prefix_ids == prefix


def test_special_by_name_and_later_entries() -> None:
    """What tokenizer_config.json says of a token counts, and a named special token is one without an entry."""
    later = {"id": 301, "content": "<think>", "special": True}
    vocabulary = read_small(small_file(), added=(later, {"id": 302, "content": "<new>"}), more_special=("ab",))
    assert vocabulary.types[301] is TokenType.CONTROL
    assert vocabulary.tokens[302] == "<new>"
    assert vocabulary.types[vocabulary.tokens.index("ab")] is TokenType.CONTROL
    assert PromptEncoder(vocabulary).encode("<new>ab") == (1, 302, vocabulary.tokens.index("ab"))


def test_no_merge_and_no_whole_word_makes_a_control_token() -> None:
    def change(file: dict[str, Any]) -> None:
        vocab = file["model"]["vocab"]
        vocab |= {"<s": 290}
        file["model"] |= {"merges": ["< s", "<s >"], "ignore_merges": True}
        file["normalizer"] = None

    vocabulary = read_small(small_file(change))
    for word in ("<s>", "<unk>", "<|user|>"):
        assert vocabulary.control_ids.isdisjoint(vocabulary.words.encode(word).ids)
    assert vocabulary.words.encode("<s>").tokens == ["<s", ">"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting("model", "type", value="Unigram"), "kind 'Unigram' is not known"),
        (setting("model", "type", value="WordPiece"), "kind 'WordPiece' is not known"),
        (setting("model", "end_of_word_suffix", value="</w>"), "end_of_word_suffix"),
        (setting("decoder", value={"type": "WordPiece", "prefix": "##", "cleanup": True}), "decodes tokens .WordPiece"),
        (setting("decoder", value=None), "no decoder"),
        (setting("pre_tokenizer", value={"type": "Telepathy"}), "pre-tokenizer is not known"),
        (setting("pre_tokenizer", value=7), "pre-tokenizer is not known"),
        (setting("pre_tokenizer", value={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}), "known"),
    ],
)
def test_unknown_kinds_are_refused(change: Change, words: str) -> None:
    with pytest.raises(UnknownTokenizer, match=f"small/tokenizer.json: .*{words}") as caught:
        read_small(small_file(change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting("model", value=None), "no model"),
        (setting("model", "vocab", value=["a"]), "not a table"),
        (setting("model", "vocab", "a", value=-1), "not a table"),
        (setting("model", "vocab", "a", value=True), "not a table"),
        (setting("model", "vocab", "a", value=1), "two tokens with one id"),
        (setting("model", "vocab", "", value=299), "empty token"),
        (setting("model", "vocab", "a", value=2**40), "largest id is 1099511627776"),
        (setting("model", "merges", value=None), "no list of merges"),
        (setting("model", "merges", value=["ab"]), "not a pair"),
        (setting("model", "merges", value=[["a", 1]]), "not a pair"),
        (setting("model", "merges", value=[["a", "a"]]), "does not join two"),
        (setting("model", "merges", value=["a x"]), "does not join two"),
        (setting("model", "byte_fallback", value="yes"), "'byte_fallback' is not true or false"),
        (setting("added_tokens", value=7), "'added_tokens' is not a list"),
        (setting("added_tokens", value=[7]), "'added_tokens' is not a list"),
        (setting("added_tokens", 0, "content", value=""), "no id or no text"),
        (setting("added_tokens", 0, "id", value="0"), "no id or no text"),
        (setting("added_tokens", 0, "id", value=9), "share an id"),
        (setting("post_processor", "single", 0, "SpecialToken", "id", value="<x>"), "not in the vocabulary"),
    ],
)
def test_contradictions_are_refused(change: Change, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"small/tokenizer.json: .*{words}.*; download the model again"):
        read_small(small_file(change))


def test_an_end_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(CheckpointError, match="beyond the 302"):
        read_small(small_file(), end_ids=(302,))


def test_a_megabyte_in_one_line_takes_seconds() -> None:
    encoder = PromptEncoder(read_small(small_file()))
    began = time.process_time()
    for text in ("ab" * 500_000, "<s>" * 100_000, "<" * 1_000_000, " " * 1_000_000):
        assert len(encoder.encode(text)) > 50_000
    assert time.process_time() - began < 60


_ODD: tuple[object, ...] = (
    None,
    7,
    -1,
    1.5,
    True,
    "x",
    "▁",
    "<s>",
    "ByteLevel",
    "Sequence",
    [],
    {},
    [[]],
    {"a": 1},
    {"Regex": "(a"},
    2**70,
)


def test_files_that_are_wrong_anywhere_are_refused_or_read() -> None:
    """Whatever is put in whichever place: one clear error, or a tokenizer that works."""
    random = Random(0)
    outcomes = Counter[str]()
    for _ in range(300):
        file = small_file(random.choice([None, metaspace("first"), metaspace("always")]))
        for _ in range(random.randint(1, 2)):
            path = random.choice([path for path in _places(file) if path])
            setting(*path, value=random.choice(_ODD))(file)
        try:
            vocabulary = read_small(file)
        except CheckpointError:
            outcomes["refused"] += 1
            continue
        encoder = PromptEncoder(vocabulary)
        for text in ("ab <s> é中\n", "<|user|>a <think>", ""):
            assert all(0 <= token_id < len(vocabulary.tokens) for token_id in encoder.encode(text))
        outcomes["read"] += 1
    assert min(outcomes.values()) > 30


def _places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key in list(value)[:12]:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _places(value[index], (*path, index))
