"""Keeps control tokens out of what users write, before a chat template renders it.

A template renders a conversation to one text, in which the template's `<|im_end|>` and one that a user typed look the
same. Other servers parse both. Here a literal in a message is broken by a mark, a character that occurs nowhere in the
conversation; the rendered text is then cut at the control tokens that are left (the template's own), and the marks are
removed from the rest. Messages without such a literal, which is nearly all, reach the template untouched; a template
sees marks only in and right after a literal. Knows text only: no ids, no templates.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tokenizers import AddedToken

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import ChatTurn
from deployments.tokenizer.splitting import LiteralFinder, Span

# Private-use characters of plane 15: never assigned a meaning, never trimmed as white space.
_MARKS = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, kw_only=True)
class GuardedTurns:
    """A conversation whose control literals are broken by `mark`; `None` when it had none."""

    turns: tuple[ChatTurn, ...]
    mark: str | None


class ControlGuard:
    """Breaks the literals of `control_texts` wherever a user wrote one, whole or as the beginning of one.

    A beginning matters at the end of a message only, where the template's next characters could complete it.
    """

    def __init__(self, control_texts: Collection[str], /) -> None:
        literals = tuple(control_texts)
        self._finder = LiteralFinder(
            ((index, AddedToken(text, normalized=False)) for index, text in enumerate(literals)),
            wanted=range(len(literals)),
        )
        self._beginnings = frozenset(text[:n] for text in control_texts for n in range(1, len(text)))
        self._longest = max((len(text) for text in control_texts), default=0)

    def guard(self, turns: tuple[ChatTurn, ...], /) -> GuardedTurns:
        """Raises `InvalidRequest` when the conversation leaves no character to mark with."""
        texts = [text for turn in turns for text in (turn.role, turn.content)]
        if not any(self._is_suspect(text) for text in texts):
            return GuardedTurns(turns=turns, mark=None)
        mark = _free_mark(texts)
        guarded = tuple(
            ChatTurn(role=self._break(turn.role, mark=mark), content=self._break(turn.content, mark=mark))
            for turn in turns
        )
        return GuardedTurns(turns=guarded, mark=mark)

    def _is_suspect(self, text: str, /) -> bool:
        return self._ends_open(text.rstrip()) or bool(self._finder.spans(text))

    def _ends_open(self, text: str, /) -> bool:
        lengths = range(1, min(len(text), self._longest) + 1)
        return any(text[-length:] in self._beginnings for length in lengths)

    def _break(self, text: str, /, *, mark: str) -> str:
        # Again and again: breaking one may leave another that overlapped it.
        while spans := self._finder.spans(text):
            text = _marked(text, spans=spans, mark=mark)
        kept = text.rstrip()
        return kept + mark + text[len(kept) :] if self._ends_open(kept) else text


def _marked(text: str, /, *, spans: list[Span], mark: str) -> str:
    pieces = []
    start = 0
    for span in spans:
        pieces += [text[start : span.begin + 1], mark, text[span.begin + 1 : span.end], mark]
        start = span.end
    return "".join([*pieces, text[start:]])


def _free_mark(texts: list[str], /) -> str:
    used = frozenset().union(*texts)
    mark = next((chr(code) for code in _MARKS if chr(code) not in used), None)
    if mark is None:
        raise InvalidRequest("messages use every private-use character of plane 15; remove one of them", "messages")
    return mark
