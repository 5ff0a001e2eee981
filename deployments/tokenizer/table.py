"""The bytes each token stands for.

Normal tokens are spelled in GPT-2's byte-level alphabet (`bytes_to_unicode` in its `encoder.py`), which gives every
byte a printable character; it is undone here. Other tokens stand for their own text, unused ones for nothing.
"""

import re
from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType

from deployments.messages.generation import TokenTable
from deployments.tokenizer.vocabulary import TokenType, Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[int, str]:
    """Byte to character. Printable bytes of Latin-1 stand for themselves, the others for U+0100 onwards in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def token_table(vocabulary: Vocabulary, /, *, has_chat_template: bool) -> TokenTable:
    """What decodes this vocabulary's ids anywhere."""
    undo = MappingProxyType({ord(char): byte for byte, char in byte_alphabet().items()})
    pieces = [
        _bytes_of(text, kind=kind, undo=undo) for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return TokenTable(
        blob=b"".join(pieces),
        ends=tuple(accumulate(len(piece) for piece in pieces)),
        special_ids=vocabulary.control_ids,
        end_ids=vocabulary.end_ids,
        has_chat_template=has_chat_template,
    )


def _bytes_of(text: str, /, *, kind: TokenType, undo: Mapping[int, int]) -> bytes:
    if kind is TokenType.UNUSED:
        return b""
    if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
        return text.encode()
    if kind is TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes.fromhex(match[1])
    try:
        return bytes([undo[ord(char)] for char in text])
    except KeyError:  # not spelled in the alphabet: a text added after training
        return text.encode()
