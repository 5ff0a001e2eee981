"""Text to token ids. Knows control tokens and marks; not templates, not requests.

Meant to run in a thread: the tokenizer works without the interpreter lock (`encode_batch_fast` does, `encode` holds it
for half a second per megabyte), and everything else is many short steps.
"""

from deployments.messages.errors import InvalidRequest
from deployments.tokenizer.splitting import control_finder
from deployments.tokenizer.vocabulary import Vocabulary


class PromptEncoder:
    """Encodes whole prompts. The literal text of a control token, such as `<|im_end|>`, becomes that token.

    Two things a model's files may ask for are not followed: a second beginning-of-text token where the text already
    starts with one, and an end-of-text token after the prompt, which would ask the model for nothing.

    Bytes for which the vocabulary has no token are dropped, as in llama.cpp (SmolLM2 lacks six control characters),
    or become its token for unknown text, if it has one.
    """

    def __init__(self, vocabulary: Vocabulary, /) -> None:
        self._words = vocabulary.words
        self._words_later = vocabulary.words_later
        self._finder = control_finder(vocabulary)
        self._prefix = vocabulary.prefix_ids

    def encode(self, text: str, /, *, mark: str | None = None) -> tuple[int, ...]:
        """Literals that `mark` breaks stay text, and the marks themselves leave no trace."""
        texts: list[str] = []
        controls: list[int] = []
        start = 0
        for span in self._finder.spans(text):
            texts.append(text[start : span.begin])
            controls.append(span.token_id)
            start = span.end
        texts.append(text[start:])
        if mark is not None:
            texts = [piece.replace(mark, "") for piece in texts]
        ids = tuple(self._joined(texts, controls=controls))
        return ids if ids[: len(self._prefix)] == self._prefix else self._prefix + ids

    def _joined(self, texts: list[str], /, *, controls: list[int]) -> list[int]:
        (first,) = self._words.encode_batch_fast(texts[:1], add_special_tokens=False)
        others = self._words_later.encode_batch_fast(texts[1:], add_special_tokens=False)
        ids: list[int] = list(first.ids)
        for token_id, encoding in zip(controls, others, strict=True):
            ids.append(token_id)
            ids += encoding.ids
        return ids


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
