"""The bytes each token stands for.

Normal tokens are spelled in GPT-2's byte-level alphabet, which gives every byte a printable character, or as
SentencePiece spells them, with U+2581 for a space; either is undone here. Byte tokens (`<0x0A>`) stand for their byte,
other tokens for their own text, unused ones for nothing.

A token's bytes do not depend on its place. So a reply begins with the space that its first token begins with, as in
llama.cpp and as what `transformers` decodes of prompt and reply together: dropping a space at the beginning is for
whole texts, whose first token got that space from the tokenizer.
"""

import re
from collections.abc import Callable
from itertools import accumulate

from deployments.messages.generation import TokenTable
from deployments.tokenizer.byte_level import byte_alphabet
from deployments.tokenizer.vocabulary import CONTROL_TYPES, SPACE, Spelling, TokenType, Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_table(vocabulary: Vocabulary, /, *, has_chat_template: bool) -> TokenTable:
    """What decodes this vocabulary's ids anywhere."""
    sentencepiece = vocabulary.spelling is Spelling.SENTENCEPIECE
    spelled = _sentencepiece if sentencepiece else _byte_level()
    literal = CONTROL_TYPES if sentencepiece else CONTROL_TYPES | {TokenType.USER_DEFINED}
    pieces = [
        _bytes_of(text, kind=kind, spelled=spelled, literal=kind in literal)
        for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return TokenTable(
        blob=b"".join(pieces),
        ends=tuple(accumulate(len(piece) for piece in pieces)),
        special_ids=vocabulary.control_ids,
        end_ids=vocabulary.end_ids,
        has_chat_template=has_chat_template,
    )


def _bytes_of(text: str, /, *, kind: TokenType, spelled: Callable[[str], bytes], literal: bool) -> bytes:
    if kind is TokenType.UNUSED:
        return b""
    if literal:
        return text.encode()
    if kind is TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes.fromhex(match[1])
    return spelled(text)


def _byte_level() -> Callable[[str], bytes]:
    undo = {char: byte for byte, char in byte_alphabet().items()}

    def spelled(text: str) -> bytes:
        try:
            return bytes([undo[char] for char in text])
        except KeyError:  # not spelled in the alphabet: a text added after training
            return text.encode()

    return spelled


def _sentencepiece(text: str) -> bytes:
    return text.replace(SPACE, " ").encode()
