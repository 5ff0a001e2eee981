"""Control tokens in text: where they are found, and what they take away."""

import time

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from deployments.tokenizer.splitting import LiteralFinder, control_finder
from deployments.tokenizer.vocabulary import Spelling, TokenType, Vocabulary

_CONTROL, _TEXT = TokenType.CONTROL, TokenType.USER_DEFINED


def _finder(*literals: tuple[AddedToken, TokenType]) -> LiteralFinder:
    nothing = Tokenizer(BPE(vocab={}, merges=[]))
    return control_finder(
        Vocabulary(
            tokens=tuple(literal.content for literal, _ in literals),
            types=tuple(kind for _, kind in literals),
            spelling=Spelling.BYTE_LEVEL,
            words=nothing,
            words_later=nothing,
            literals={index: literal for index, (literal, _) in enumerate(literals)},
            bos_id=None,
            eos_id=None,
            prefix_ids=(),
            end_ids=(),
        )
    )


def _plain(text: str) -> AddedToken:
    return AddedToken(text, normalized=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("no tokens at all", []),
        ("<s>", [(0, 3, 0)]),
        ("é🙂<s>日本<s><s>", [(2, 5, 0), (7, 13, 1)]),
        ("<s><s><s>", [(0, 6, 1), (6, 9, 0)]),
        ("a <a<s>> b", [(2, 8, 2)]),
        ("<think<s>>", []),
        (" \u00a0<x> \n y", [(0, 8, 4)]),
        ("a<x>", [(1, 4, 4)]),
        ("|", []),
    ],
)
def test_spans(text: str, found: list[tuple[int, int, int]]) -> None:
    """Leftmost, longest; a token that is text hides what it holds; white space goes where a token takes it."""
    finder = _finder(
        (_plain("<s>"), _CONTROL),
        (_plain("<s><s>"), _CONTROL),
        (_plain("<a<s>>"), _CONTROL),
        (_plain("<think<s>>"), _TEXT),
        (AddedToken("<x>", normalized=False, lstrip=True, rstrip=True), _CONTROL),
        (_plain("|"), _CONTROL),
    )
    assert [(span.begin, span.end, span.token_id) for span in finder.spans(text)] == found


def test_a_token_of_a_whole_word() -> None:
    finder = _finder((AddedToken("stop", normalized=False, single_word=True), _CONTROL))
    assert [span.begin for span in finder.spans("nonstop stop stopping")] == [8]


def test_thousands_of_literals_in_a_megabyte() -> None:
    """Gemma has 6,249 control tokens."""
    finder = _finder(*((_plain(f"<unused{index}>"), _CONTROL) for index in range(6_249)))
    began = time.process_time()
    assert [span.token_id for span in finder.spans("<unused" * 140_000 + "<unused6248>")] == [6_248]
    assert time.process_time() - began < 10
