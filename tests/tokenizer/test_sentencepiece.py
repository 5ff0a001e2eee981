"""Vocabularies with scores: against the original algorithm, against llama.cpp, and the rules around them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.ingress.decoding import IncrementalDecoder
from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import CheckpointError
from deployments.messages.generation import TokenTable
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.sentencepiece import scored_merges, scored_words
from deployments.tokenizer.table import token_table
from deployments.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import mixed_texts
from tests.tokenizer.reference import joined_by_scores

type WriteVocabulary = Callable[..., Path]

_DATA = Path(__file__).parent.parent / "data" / "tokenizer"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, "▁", "a", "b", "▁a", "ab", "▁ab", "<|user|>", "<think>"]
_LONG = Path(__file__).parents[2] / "deployments" / "tokenizer" / "encoding.py"


def _bytes(table: TokenTable, /, ids: tuple[int, ...]) -> bytes:
    return b"".join(table.blob[table.ends[i - 1] if i else 0 : table.ends[i]] for i in ids)


@pytest.fixture(scope="module", params=["sentencepiece", "gemma4"])
def trained(request: pytest.FixtureRequest) -> tuple[str, Vocabulary]:
    """A vocabulary of about 860 tokens, trained on this project's documents."""
    path = _DATA / f"{request.param}_vocabulary.gguf"
    return request.param, read_gguf_vocabulary(GgufFile(path))


@pytest.fixture
def write(write_vocabulary: WriteVocabulary) -> WriteVocabulary:
    """A file of 256 bytes and a handful of pieces; `▁ab` is joined from `▁a` and `b` before `ab` is."""

    def write(**changes: object) -> Path:
        asked: dict[str, object] = {
            "ggml__model": "llama",
            "ggml__pre": None,
            "ggml__tokens": _TOKENS,
            "ggml__token_type": [2, 3, 3, *[6] * 256, *[1] * 6, 3, 4],
            "ggml__scores": [0.0] * 259 + [-4.0, -5.0, -6.0, -1.0, -2.0, -3.0, -1000.0, -1000.0],
            "ggml__merges": None,
            "ggml__bos_token_id": None,
            "ggml__eos_token_id": None,
        }
        return write_vocabulary(**{**asked, **changes})

    return write


def _ids(path: Path, /, text: str) -> list[int]:
    return list(PromptEncoder(read_gguf_vocabulary(GgufFile(path))).encode(text))


def test_ids_are_those_of_llama_cpp(trained: tuple[str, Vocabulary]) -> None:
    name, vocabulary = trained
    encoder = PromptEncoder(vocabulary)
    vectors = json.loads((_DATA / "sentencepiece_vectors.json").read_text())[name]
    assert len(vectors) == 90
    for vector in vectors:
        assert list(encoder.encode(vector["text"])) == vector["ids"], vector["text"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("abc", min_size=2, max_size=6), min_size=1, max_size=25, unique=True),
    st.lists(st.text("abc", min_size=1, max_size=60), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_merges_by_score_join_what_sentencepiece_joins(pieces: list[str], texts: list[str], random: Random) -> None:
    """For any vocabulary whose scores differ, not only for those that training makes."""
    tokens = ["a", "b", "c", *pieces]
    ranks = list(range(len(tokens)))
    random.shuffle(ranks)
    ids = {text: index for index, text in enumerate(tokens)}
    words = scored_words(
        ids, scores=[-float(rank) for rank in ranks], bytes_=frozenset(), fixed=(), unknown=None, space_first=False
    )
    scores = {text: -float(ranks[index]) for text, index in ids.items()}
    for text in texts:
        assert words.encode(text).tokens == joined_by_scores(text, scores=scores)


def test_a_trained_vocabulary_joins_what_sentencepiece_joins() -> None:
    vocabulary = read_gguf_vocabulary(GgufFile(_DATA / "sentencepiece_vocabulary.gguf"))
    # By the file's construction: bytes, pieces from the best score down, five tokens that are never joined.
    pieces = vocabulary.tokens[259:-5]
    scores = {text: -float(index) for index, text in enumerate(pieces)}
    texts = [" ".join(text.split()) for text in (*mixed_texts.ALL, _LONG.read_text())]
    for text in texts:
        assert not any(fixed in text for fixed in ("  ", "\n"))
        expected: list[str] = []
        for part in joined_by_scores("▁" + text.replace(" ", "▁"), scores=scores):
            expected += [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
        assert vocabulary.words.encode(text).tokens == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ["<s>"]),
        ("ab", ["<s>", "▁ab"]),
        (" ab", ["<s>", "▁", "▁ab"]),
        ("ba", ["<s>", "▁", "b", "a"]),
        ("é", ["<s>", "▁", "<0xC3>", "<0xA9>"]),
        ("\n", ["<s>", "▁", "<0x0A>"]),
        ("<s>ab", ["<s>", "▁ab"]),
        ("a<|user|>a</s>", ["<s>", "▁a", "<|user|>", "▁a", "</s>"]),
        ("a<think>a", ["<s>", "▁a", "<think>", "▁a"]),
        ("<0x41>", ["<s>", "▁", *(f"<0x{byte:02X}>" for byte in b"<0x41>")]),
    ],
)
def test_the_leading_space_and_bytes(write: WriteVocabulary, text: str, tokens: list[str]) -> None:
    assert [_TOKENS[i] for i in _ids(write(), text)] == tokens


def test_no_space_is_put_first_where_the_file_says_so(write: WriteVocabulary) -> None:
    path = write(ggml__add_space_prefix=False, ggml__add_bos_token=False)
    assert [_TOKENS[i] for i in _ids(path, "ab ab<|user|>ab")] == ["ab", "▁ab", "<|user|>", "ab"]


def test_a_character_without_bytes_is_the_unknown_token(write: WriteVocabulary) -> None:
    path = write(ggml__token_type=[2, 3, 3, *[5] * 256, *[1] * 6, 3, 4])
    assert [_TOKENS[i] for i in _ids(path, "aéé中b<unk>")] == ["<s>", "▁a", "<unk>", "b", "<unk>"]


def test_what_llama_cpp_assumes_where_nothing_is_said(write: WriteVocabulary) -> None:
    vocabulary = read_gguf_vocabulary(GgufFile(write()))
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.prefix_ids, vocabulary.end_ids) == (1, 2, (1,), (2,))


def test_no_text_becomes_a_control_token(write: WriteVocabulary) -> None:
    """Not even where pieces would lead to it."""
    tokens = [*_TOKENS[:259], "▁", "<", "s", ">", "<s", "s>", "<|user|>", "<think>"]
    path = write(ggml__tokens=tokens, ggml__scores=[0.0] * 267, ggml__token_type=[2, 3, 3, *[6] * 256, *[1] * 6, 3, 4])
    with pytest.raises(CheckpointError, match="same score"):
        read_gguf_vocabulary(GgufFile(path))
    scores = [0.0] * 259 + [-float(i) for i in range(8)]
    vocabulary = read_gguf_vocabulary(GgufFile(write(ggml__tokens=tokens, ggml__scores=scores)))
    assert vocabulary.words.encode("<s>").tokens == ["▁", "<s", ">"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml__scores": None}, r"no metadata 'tokenizer\.ggml\.scores'"),
        ({"ggml__scores": [0.0]}, "scores does not fit its 267 tokens"),
        ({"ggml__scores": [float("nan")] * 267}, "scores does not fit its 267 tokens"),
        ({"ggml__scores": ["a"] * 267}, "scores does not fit its 267 tokens"),
        ({"ggml__scores": [0.0] * 267}, r"small\.gguf: all tokens have the same score"),
        ({"ggml__tokens": ["a"] * 267}, "empty or repeated"),
        ({"ggml__unknown_token_id": 999}, "unknown_token_id is 999"),
        (
            {"ggml__tokens": [*_TOKENS[:259], "▁", "a", "b", "▁a", "ab", "x" * 2000, *_TOKENS[265:]]},
            r"small\.gguf: a token of 2000 characters",
        ),
    ],
)
def test_contradictions_are_refused(write: WriteVocabulary, changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_gguf_vocabulary(GgufFile(write(**changes)))


def test_equal_scores_of_some_tokens_are_put_in_order() -> None:
    """As transformers' converter does: the longer left half first."""
    pieces = {"a": 0, "aa": 1, "aaa": 2, "b": 3, "ab": 4}
    assert scored_merges(pieces, scores=[0, -1, -1, 0, -2]) == [("aa", "a"), ("a", "aa"), ("a", "a"), ("a", "b")]
    assert scored_merges(pieces, scores=[0, -1, -2, 0, -0.5]) == [("a", "b"), ("a", "a"), ("aa", "a"), ("a", "aa")]


@pytest.mark.parametrize("text", [*mixed_texts.ALL, mixed_texts.CONTROLS, "\n".join(mixed_texts.ALL)])
def test_round_trip(trained: tuple[str, Vocabulary], text: str) -> None:
    name, vocabulary = trained
    table = token_table(vocabulary, has_chat_template=False)
    ids = PromptEncoder(vocabulary).encode(text)
    fixed = ("  ", "\n\n", "<think>")
    assert ids[0] == vocabulary.bos_id
    decoded = _bytes(table, ids[1:])
    if name == "gemma4":
        assert decoded == text.encode()
    elif not any(literal in text for literal in fixed):
        assert decoded == b" " + text.encode()
    else:  # a space is read before each stretch of text
        assert decoded.replace(b" ", b"") == text.encode().replace(b" ", b"")


def test_round_trip_of_anything(trained: tuple[str, Vocabulary]) -> None:
    name, vocabulary = trained
    table = token_table(vocabulary, has_chat_template=False)
    encoder = PromptEncoder(vocabulary)
    space = b"" if name == "gemma4" else b" "

    @given(st.text(st.characters(codec="utf-8", exclude_characters="▁<\n "), min_size=1))
    def check(text: str) -> None:
        assert _bytes(table, encoder.encode(text)[1:]) == space + text.encode()

    check()


@pytest.mark.parametrize("text", mixed_texts.ALL)
def test_a_reply_is_decoded_token_by_token(trained: tuple[str, Vocabulary], text: str) -> None:
    """By the ingress, which knows bytes only: nothing is lost at any cut, and a reply keeps its first space."""
    name, vocabulary = trained
    table = token_table(vocabulary, has_chat_template=False)
    encoder = PromptEncoder(vocabulary)
    prompt = encoder.encode("Say:")
    whole = encoder.encode("Say: " + text)
    assert whole[: len(prompt)] == prompt
    decoder = IncrementalDecoder(table=table)
    reply = "".join(map(decoder.decode, whole[len(prompt) :])) + decoder.flush()
    # After a token that is found in the text beforehand this vocabulary reads one more space.
    assert reply == " " + text or (name == "sentencepiece" and reply.replace(" ", "") == text.replace(" ", ""))


def test_bytes_of_each_kind_of_token(write: WriteVocabulary) -> None:
    table = token_table(read_gguf_vocabulary(GgufFile(write())), has_chat_template=False)
    pieces = {text: _bytes(table, (i,)) for i, text in enumerate(_TOKENS)}
    assert [pieces[f"<0x{byte:02X}>"] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert (pieces["▁ab"], pieces["<|user|>"], pieces["<think>"]) == (b" ab", b"<|user|>", b"<think>")
    assert table.special_ids == {0, 1, 2, 265}


def test_a_megabyte_in_one_line_takes_seconds(trained: tuple[str, Vocabulary]) -> None:
    """There are no words to cut it into; the time must not grow with the square of its length."""
    encoder = PromptEncoder(trained[1])
    began = time.process_time()
    for text in ("ab" * 500_000, "\U0001f642" * 250_000, " " * 1_000_000):
        assert len(encoder.encode(text)) > 20_000
    assert time.process_time() - began < 60
