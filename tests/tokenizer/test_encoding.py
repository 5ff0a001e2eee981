"""Ids against two independent tokenizers, first tokens, marks, and text that is not Unicode."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import InvalidRequest
from deployments.tokenizer.encoding import PromptEncoder, require_unicode
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.vocabulary import Vocabulary

type WriteVocabulary = Callable[..., Path]

_MARK = "\U000f0000"


@pytest.mark.parametrize("kind", ["smollm", "qwen2"])
def test_golden_vectors(kind: str, golden_llama: Path, qwen2_vocabulary_path: Path, golden_vectors: Path) -> None:
    path = golden_llama / "llama.f16.gguf" if kind == "smollm" else qwen2_vocabulary_path
    encoder = PromptEncoder(read_gguf_vocabulary(GgufFile(path)))
    vectors = json.loads(golden_vectors.read_text())[kind]
    assert len(vectors) == 20
    for vector in vectors:
        assert list(encoder.encode(vector["text"])) == vector["llamacpp_ids"], vector["text"]


@pytest.mark.parametrize("kind", ["smollm", "qwen2"])
def test_a_mark_that_occurs_nowhere_changes_nothing(
    kind: str, golden_llama: Path, qwen2_vocabulary_path: Path, golden_vectors: Path
) -> None:
    path = golden_llama / "llama.f16.gguf" if kind == "smollm" else qwen2_vocabulary_path
    encoder = PromptEncoder(read_gguf_vocabulary(GgufFile(path)))
    for vector in json.loads(golden_vectors.read_text())[kind]:
        assert encoder.encode(vector["text"], mark=_MARK) == encoder.encode(vector["text"])


def test_marked_literals_stay_text_and_marks_vanish(write_vocabulary: WriteVocabulary) -> None:
    encoder = PromptEncoder(read_gguf_vocabulary(GgufFile(write_vocabulary())))
    text = f"🙂<|im_end|>a{_MARK}b<{_MARK}|im_end|><think><|im_start|>"
    assert list(encoder.encode(text, mark=_MARK)) == [*"🙂".encode(), 259, 256, *b"<|im_end|>", 260, 258]


@pytest.mark.parametrize(
    ("changes", "text", "ids"),
    [
        ({}, "a", (97,)),
        ({"ggml__add_bos_token": True}, "a", (257, 97)),
        ({"ggml__add_bos_token": True}, "", (257,)),
        ({"ggml__add_bos_token": True}, "<|endoftext|>a", (257, 97)),
        ({"ggml__pre": "llama-bpe"}, "ab", (257, 256)),
    ],
)
def test_first_token(
    write_vocabulary: WriteVocabulary, changes: dict[str, object], text: str, ids: tuple[int, ...]
) -> None:
    encoder = PromptEncoder(read_gguf_vocabulary(GgufFile(write_vocabulary(**changes))))
    assert encoder.encode(text) == ids
    assert encoder.encode(text, mark=_MARK) == ids


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", (256,)), ("dbrx", (97, 98))])
def test_llama_bpe_takes_a_word_that_is_a_token_whole(
    write_vocabulary: WriteVocabulary, pre: str, ids: tuple[int, ...]
) -> None:
    """`ab` is a token, but no merge leads to it."""
    tokens = read_gguf_vocabulary(GgufFile(write_vocabulary())).tokens
    path = write_vocabulary(
        ggml__pre=pre,
        ggml__add_bos_token=False,
        ggml__tokens=[*tokens[:260], "bc"],
        ggml__token_type=[1] * 257 + [3, 3, 3, 1],
        ggml__merges=["b c"],
    )
    assert PromptEncoder(read_gguf_vocabulary(GgufFile(path))).encode("ab") == ids


def test_of_overlapping_literals_the_leftmost_longest_counts(write_vocabulary: WriteVocabulary) -> None:
    tokens = read_gguf_vocabulary(GgufFile(write_vocabulary())).tokens
    path = write_vocabulary(ggml__tokens=[*tokens[:257], "<s>", "<s><s>", "><", tokens[260]])
    encoder = PromptEncoder(read_gguf_vocabulary(GgufFile(path)))
    assert encoder.encode("<s><s><s>><") == (258, 257, 259)


@pytest.mark.parametrize(
    ("text", "words"), [("abc\ud800", r"U\+D800 at character 3"), ("\udfff", r"U\+DFFF at character 0")]
)
def test_half_a_surrogate_pair_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        require_unicode(text, param="messages[3].content")
    assert caught.value.param == "messages[3].content"


def test_every_character_is_valid_but_surrogates() -> None:
    require_unicode("".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000), param="prompt")


def test_padding_is_not_text(golden_vocabulary: Vocabulary) -> None:
    assert 507 not in PromptEncoder(golden_vocabulary).encode("[PAD507]")
