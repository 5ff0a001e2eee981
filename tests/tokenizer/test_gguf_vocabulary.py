"""Which files are read, which are refused and in what words, and what a vocabulary says."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.vocabulary import TokenType, Vocabulary

type WriteVocabulary = Callable[..., Path]


def test_reads_the_golden_vocabulary(golden_vocabulary: Vocabulary) -> None:
    assert len(golden_vocabulary.tokens) == 512
    assert golden_vocabulary.control_texts == {"<|endoftext|>": 497, "<|im_start|>": 498, "<|im_end|>": 499}
    assert golden_vocabulary.text_of(golden_vocabulary.bos_id) == "<|endoftext|>"
    assert golden_vocabulary.text_of(golden_vocabulary.eos_id) == "<|im_end|>"
    assert golden_vocabulary.text_of(None) == ""
    assert golden_vocabulary.end_ids == (499, 497)
    assert len(golden_vocabulary.ids_of(TokenType.UNUSED)) == 12
    assert golden_vocabulary.prefix_ids == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml__model": "bert"}, r"small\.gguf: tokenizer model 'bert' .*one of: gpt2 .*llama .*gemma4"),
        ({"ggml__pre": "viking"}, r"small\.gguf: pre-tokenizer 'viking' .*smollm"),
        ({"ggml__pre": None}, r"small\.gguf does not name its pre-tokenizer"),
    ],
)
def test_unknown_kinds_are_refused_by_name(
    write_vocabulary: WriteVocabulary, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UnknownTokenizer, match=words):
        read_gguf_vocabulary(GgufFile(write_vocabulary(**changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml__model": None}, r"no metadata 'tokenizer\.ggml\.model'"),
        ({"ggml__tokens": None}, r"no metadata 'tokenizer\.ggml\.tokens'"),
        ({"ggml__tokens": [1, 2, 3]}, "not a list of texts"),
        ({"ggml__token_type": [1, 3]}, "does not fit its 261 tokens"),
        ({"ggml__token_type": [9] * 261}, "does not fit its 261 tokens"),
        ({"ggml__eos_token_id": 261}, "eos_token_id is 261, but there are 261 tokens"),
        ({"ggml__tokens": ["a"] * 261}, "empty or repeated"),
        ({"ggml__merges": ["a c"]}, "the merge 'a c'"),
        ({"ggml__merges": ["ab"]}, "the merge 'ab '"),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, "names none"),
    ],
)
def test_contradictions_are_refused(write_vocabulary: WriteVocabulary, changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_gguf_vocabulary(GgufFile(write_vocabulary(**changes)))


def test_a_merge_cannot_make_a_control_token(write_vocabulary: WriteVocabulary) -> None:
    path = write_vocabulary(ggml__token_type=[1] * 256 + [3, 3, 3, 3, 4])
    with pytest.raises(CheckpointError, match="the merge 'a b'"):
        read_gguf_vocabulary(GgufFile(path))


@pytest.mark.parametrize(
    ("changes", "add_bos"),
    [
        ({}, False),
        ({"ggml__pre": "llama-bpe"}, True),
        ({"ggml__pre": "llama-bpe", "ggml__add_bos_token": False}, False),
        ({"ggml__add_bos_token": True}, True),
    ],
)
def test_the_file_decides_on_the_first_token(
    write_vocabulary: WriteVocabulary, changes: dict[str, object], add_bos: bool
) -> None:
    assert read_gguf_vocabulary(GgufFile(write_vocabulary(**changes))).prefix_ids == ((257,) if add_bos else ())


@pytest.mark.parametrize(
    ("changes", "end_ids"),
    [
        ({}, (259, 257)),
        ({"ggml__eos_token_id": 258}, (258, 257, 259)),
        ({"ggml__eos_token_id": None}, (257, 259)),
        ({"ggml__eot_token_id": 0, "ggml__eom_token_id": 1}, (259, 0, 1, 257)),
        # The text alone ends nothing: the file must say that it is a control token.
        ({"ggml__eos_token_id": None, "ggml__token_type": [1] * 257 + [4, 3, 4, 4]}, ()),
        ({"ggml__eos_token_id": None, "ggml__token_type": None}, ()),
    ],
)
def test_what_ends_a_reply(
    write_vocabulary: WriteVocabulary, changes: dict[str, object], end_ids: tuple[int, ...]
) -> None:
    assert read_gguf_vocabulary(GgufFile(write_vocabulary(**changes))).end_ids == end_ids


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("<end_of_turn>", 3, True),
        ("<turn|>", 3, True),
        ("<eos>", 3, True),
        ("[|endofturn|]", 3, True),
        ("<|end_of_text|>", 3, True),
        ("<|end_of_role|>", 3, False),
        ("<start_of_turn>", 3, False),
        ("</s>", 4, False),  # HTML, to Gemma
        ("<|tool_response>", 4, True),  # where Gemma 4 waits for a tool; converters leave it visible
        ("<|tool_response>", 1, False),
    ],
)
def test_texts_that_end_a_reply(write_vocabulary: WriteVocabulary, text: str, kind: int, ends: bool) -> None:
    tokens = read_gguf_vocabulary(GgufFile(write_vocabulary())).tokens
    path = write_vocabulary(ggml__tokens=[*tokens, text], ggml__token_type=[1] * 257 + [3, 3, 3, 4, kind])
    assert (len(tokens) in read_gguf_vocabulary(GgufFile(path)).end_ids) is ends


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
def test_the_tokenizer_cannot_make_control_tokens(write_vocabulary: WriteVocabulary, pre: str) -> None:
    """llama-bpe takes any word that is a token whole: not `stop`, when that is a control token."""
    tokens = read_gguf_vocabulary(GgufFile(write_vocabulary())).tokens
    path = write_vocabulary(ggml__pre=pre, ggml__tokens=[*tokens[:259], "stop", tokens[260]])
    tokenizer = read_gguf_vocabulary(GgufFile(path)).words
    text = "ab<think>stop<|im_start|>"
    assert tokenizer.encode(text).ids == [256, 260, *b"stop<|im_start|>"]


def test_a_single_character_is_never_a_control_literal(write_vocabulary: WriteVocabulary) -> None:
    tokens = read_gguf_vocabulary(GgufFile(write_vocabulary())).tokens
    vocabulary = read_gguf_vocabulary(GgufFile(write_vocabulary(ggml__tokens=[*tokens[:257], "\u2603", *tokens[258:]])))
    assert vocabulary.control_ids == {257, 258, 259}
    assert vocabulary.control_texts == {"<|im_start|>": 258, "<|im_end|>": 259}


def test_smollm2_is_read_and_built_within_a_second(smollm2_path: Path) -> None:
    file = GgufFile(smollm2_path)
    for key in ("tokens", "merges", "token_type"):
        file.require(f"tokenizer.ggml.{key}", list)
    began = time.process_time()
    vocabulary = read_gguf_vocabulary(file)
    assert time.process_time() - began < 1
    assert vocabulary.words.get_vocab_size() == 49152 - 17
    # As in llama.cpp: the end of the turn, the end of the text, and the mark that opens another repository.
    assert [vocabulary.text_of(i) for i in vocabulary.end_ids] == ["<|im_end|>", "<|endoftext|>", "<reponame>"]
