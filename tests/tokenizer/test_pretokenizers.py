"""How each family of pre-tokenizers cuts text, against cuts worked out from its pattern by hand."""

import pytest

from deployments.messages.errors import UnknownTokenizer
from deployments.tokenizer.byte_level import byte_alphabet
from deployments.tokenizer.pretokenizers import family_of

_TEXT = "It'S 12345 हि\n\n  don't!\n"


def _words(name: str, /, text: str) -> list[str]:
    undo = {char: byte for byte, char in byte_alphabet().items()}
    cuts = family_of(name).pre_tokenizer.pre_tokenize_str(text)
    return [bytes(undo[char] for char in word).decode() for word, _ in cuts]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["It", "'", "S", " 12345", " ह", "ि", "\n\n ", " don", "'t", "!", "\n"]),
        ("smollm", ["It", "'", "S", " ", "1", "2", "3", "4", "5", " ह", "ि", "\n\n ", " don", "'t", "!", "\n"]),
        ("llama-bpe", ["It", "'S", " ", "123", "45", " ह", "ि\n\n", " ", " don", "'t", "!\n"]),
        ("qwen2", ["It", "'S", " ", "1", "2", "3", "4", "5", " ह", "ि\n\n", " ", " don", "'t", "!\n"]),
        ("gpt-4o", ["It'S", " ", "123", "45", " हि", "\n\n", " ", " don't", "!\n"]),
        ("tekken", ["It", "'S", " ", "1", "2", "3", "4", "5", " हि", "\n\n", " ", " don", "'t", "!\n"]),
        ("qwen35", ["It", "'S", " ", "1", "2", "3", "4", "5", " हि", "\n\n", " ", " don", "'t", "!\n"]),
    ],
)
def test_each_family_cuts_as_its_pattern_says(name: str, words: list[str]) -> None:
    assert _words(name, _TEXT) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HelloWorld ÉCOLEécole a/b\n/", ["Hello", "World", " ÉCOLEécole", " a", "/b", "\n", "/"]),
        ("ÉcoleÀLaMode", ["École", "ÀLa", "Mode"]),
        ("they'LL x//\r\n", ["they'LL", " x", "//\r\n"]),
    ],
)
def test_gpt4o_cuts_where_the_case_changes(text: str, words: list[str]) -> None:
    assert _words("gpt-4o", text) == words


@pytest.mark.parametrize(
    ("name", "like"),
    [("llama4", "gpt-4o"), ("starcoder", "smollm"), ("phi-2", "gpt-2"), ("llama3", "llama-bpe"), ("megrez", "qwen2")],
)
def test_names_that_mean_the_same(name: str, like: str) -> None:
    assert family_of(name) is family_of(like)


def test_only_llama3_ignores_merges_and_begins_with_a_token_by_itself() -> None:
    settings = {
        name: (family_of(name).ignore_merges, family_of(name).add_bos) for name in ("llama-bpe", "dbrx", "smollm")
    }
    assert settings == {"llama-bpe": (True, True), "dbrx": (False, False), "smollm": (False, False)}


@pytest.mark.parametrize("name", ["", "default", "SMOLLM", "smollm3", "bert"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownTokenizer, match=rf"'{name}'.*one of: .*gpt-2.*llama-bpe.*qwen2.*smollm"):
        family_of(name)
