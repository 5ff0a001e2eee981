"""Text to token ids. Knows control tokens and marks; not templates, not requests.

Meant to run in a thread: the tokenizer works without the interpreter lock (`encode_batch_fast` does, `encode` holds it
for half a second per megabyte), and everything else is many short steps.
"""

from collections.abc import Iterator

from deployments.messages.errors import InvalidRequest
from deployments.tokenizer.vocabulary import Vocabulary, build_tokenizer


class PromptEncoder:
    """Encodes whole prompts. The literal text of a control token, such as `<|im_end|>`, becomes that token.

    Two things a file may ask for are not followed: a second beginning-of-text token where the text already starts with
    one, and an end-of-text token after the prompt, which would ask the model for nothing.

    Bytes for which the vocabulary has no token are dropped, as in llama.cpp (SmolLM2 lacks six control characters).
    """

    def __init__(self, vocabulary: Vocabulary, /) -> None:
        self._tokenizer = build_tokenizer(vocabulary)
        self._literals = vocabulary.control_texts
        self._bos = vocabulary.bos_id if vocabulary.add_bos else None

    def encode(self, text: str, /, *, mark: str | None = None) -> tuple[int, ...]:
        """Literals that `mark` breaks stay text, and the marks themselves leave no trace."""
        texts: list[str] = []
        controls: list[int] = []
        start = 0
        for begin, end, token_id in self._control_spans(text):
            texts.append(text[start:begin])
            controls.append(token_id)
            start = end
        texts.append(text[start:])
        if mark is not None:
            texts = [piece.replace(mark, "") for piece in texts]
        ids = self._joined(texts, controls=controls)
        return tuple(ids) if self._bos is None or ids[:1] == [self._bos] else (self._bos, *ids)

    def _joined(self, texts: list[str], /, *, controls: list[int]) -> list[int]:
        first, *others = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids: list[int] = list(first.ids)
        for token_id, encoding in zip(controls, others, strict=True):
            ids.append(token_id)
            ids += encoding.ids
        return ids

    def _control_spans(self, text: str, /) -> Iterator[tuple[int, int, int]]:
        """Begin, end and id of each literal, in order; of those that overlap the leftmost, of those the longest."""
        # One search per literal: a regular expression would hold the interpreter lock for the whole text.
        found = [
            (begin, -len(literal), token_id)
            for literal, token_id in self._literals.items()
            for begin in _occurrences(literal, text=text)
        ]
        done = 0
        for begin, negative_length, token_id in sorted(found):
            if begin >= done:
                done = begin - negative_length
                yield begin, done, token_id


def require_unicode(text: str, /, *, param: str) -> None:
    """Raises `InvalidRequest` when `text` holds half of a surrogate pair, which no byte sequence stands for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}); "
            "send valid Unicode text",
            param,
        ) from error


def _occurrences(literal: str, /, *, text: str) -> Iterator[int]:
    begin = text.find(literal)
    while begin >= 0:
        yield begin
        begin = text.find(literal, begin + 1)
