"""From token ids to text as they come, and stop strings in that text. Knows no HTTP and no verifier.

Neither depends on how tokens are grouped into chunks: a reply reads the same whatever speculation did to its pace.
"""

import codecs

from deployments.messages.generation import TokenTable


def token_bytes(token_id: int, /, *, table: TokenTable) -> bytes:
    """What a token stands for, control tokens included; nothing for one that only pads the model's vocabulary."""
    if token_id >= len(table.ends):
        return b""
    start = table.ends[token_id - 1] if token_id else 0
    return table.blob[start : table.ends[token_id]]


class IncrementalDecoder:
    """Turns ids into text, one at a time, and never gives out part of a character.

    A token may end inside a UTF-8 sequence; its bytes wait for the next token. Bytes that cannot become a character
    read as U+FFFD, as the Unicode standard recommends. Control tokens have no text.
    """

    def __init__(self, *, table: TokenTable) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def decode(self, token_id: int, /) -> str:
        """The text this token completes; often empty."""
        if token_id in self._table.special_ids:
            return ""
        return self._utf8.decode(token_bytes(token_id, table=self._table))

    def flush(self) -> str:
        """What is left when the reply ends inside a character."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Searches a growing text for the first stop string to be completed, character by character.

    The first to be *completed* ends the text, and of several completed by one character the longest; that choice,
    unlike the leftmost start, can be made without knowing the future. Each string keeps a Knuth-Morris-Pratt state,
    so a text of any length costs a constant per character and per string.
    """

    def __init__(self, *, stops: tuple[str, ...]) -> None:
        self._searches = tuple(_Search(pattern=stop) for stop in stops)
        self._held = ""
        self.matched = False

    def feed(self, text: str, /, *, may_end: bool = True) -> str:
        """The text that can be given out: all but what may yet turn out to be the start of a stop string.

        Args:
            may_end: whether a string that this text completes ends the reply.
        """
        if self.matched:
            return ""
        if not self._searches:
            return text
        for position, character in enumerate(text):
            completed = max(search.advance(character) for search in self._searches)
            if completed and may_end:
                self.matched = True
                known = self._held + text[: position + 1]
                return known[: len(known) - completed]
        return self._release(text)

    def flush(self) -> str:
        """What was held back, once the reply has ended without completing a stop string."""
        held, self._held = self._held, ""
        return "" if self.matched else held

    def _release(self, text: str, /) -> str:
        known = self._held + text
        hold = max(search.prefix for search in self._searches)
        self._held = known[len(known) - hold :]
        return known[: len(known) - hold]


class _Search:
    """One pattern: `prefix` is the longest of its proper prefixes that the text ends with."""

    def __init__(self, *, pattern: str) -> None:
        self._pattern = pattern
        self._borders = _borders(pattern)
        self.prefix = 0

    def advance(self, character: str, /) -> int:
        """The pattern's length if this character completes it, else 0."""
        prefix = self.prefix
        while prefix and self._pattern[prefix] != character:
            prefix = self._borders[prefix - 1]
        if self._pattern[prefix] == character:
            prefix += 1
        self.prefix = prefix
        if prefix < len(self._pattern):
            return 0
        # For a search that goes on: the next match may overlap this one.
        self.prefix = self._borders[prefix - 1]
        return prefix


def _borders(pattern: str, /) -> tuple[int, ...]:
    """For each prefix of `pattern`, the length of its longest proper border (Knuth, Morris and Pratt, 1977)."""
    borders = [0] * len(pattern)
    border = 0
    for position in range(1, len(pattern)):
        while border and pattern[position] != pattern[border]:
            border = borders[border - 1]
        if pattern[position] == pattern[border]:
            border += 1
        borders[position] = border
    return tuple(borders)
