"""Finds literals in a text: tokens that are taken out before anything else is done to it. Knows no words.

The search is the `tokenizers` library's own (all literals in one pass, outside the interpreter lock): a tokenizer
with no words, to which everything between two literals is one unknown word.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from deployments.tokenizer.vocabulary import Vocabulary

_REST = 0


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where a literal stands in a text, with the white space that it takes away."""

    begin: int
    end: int
    token_id: int


class LiteralFinder:
    """Finds literals: of those that overlap the leftmost, of those the longest.

    Args:
        literals: each with its id.
        wanted: ids of those to report; the others only hide what they overlap.
    """

    def __init__(self, literals: Iterable[tuple[int, AddedToken]], /, *, wanted: Collection[int]) -> None:
        known = list(literals)
        self._finder = Tokenizer(WordLevel(vocab={"": _REST}, unk_token=""))
        self._finder.add_tokens([literal for _, literal in known])
        self._ids = {
            self._finder.token_to_id(literal.content): token_id for token_id, literal in known if token_id in wanted
        }

    def spans(self, text: str, /) -> list[Span]:
        """All of them, in order."""
        (found,) = self._finder.encode_batch([text], add_special_tokens=False)
        return [
            Span(begin=begin, end=end, token_id=self._ids[number])
            for number, (begin, end) in zip(found.ids, found.offsets, strict=True)
            if number in self._ids
        ]


def control_finder(vocabulary: Vocabulary, /) -> LiteralFinder:
    """Finds control tokens.

    The other literals of the vocabulary take part, as they do in the library: what looks like a control token inside
    of such a text is none.
    """
    controls = frozenset(vocabulary.control_texts.values())
    # A control token of one character is no literal; see `Vocabulary.control_texts`.
    without = vocabulary.control_ids - controls
    return LiteralFinder(
        ((i, literal) for i, literal in sorted(vocabulary.literals.items()) if i not in without), wanted=controls
    )
