"""What a model's files say about its tokens, whichever files those are. Knows no format, no template, no request."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from tokenizers import AddedToken, Tokenizer


class TokenType(IntEnum):
    """What a token is for, as `tokenizer.ggml.token_type` numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Spelling(Enum):
    """How the texts of normal tokens stand for bytes."""

    BYTE_LEVEL = "gpt2"
    """Each character of GPT-2's alphabet is one byte."""

    SENTENCEPIECE = "llama"
    """UTF-8, with a space written as `SPACE`."""


SPACE = "\u2581"
CONTROL_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})
NEVER_MERGED = CONTROL_TYPES | {TokenType.UNUSED}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Everything a model's files say about its tokens.

    Attributes:
        tokens: each token's text as the files spell it; empty for ids that no token has.
        words: text without control tokens to ids. It has no control token to make, whatever it is given.
        words_later: the same for text that comes after a control token, where the leading space may differ.
        literals: the tokens that are found in a text before anything else is done to it, control tokens among them.
        bos_id: the token that a template's `bos_token` writes.
        prefix_ids: what a prompt begins with, unless it does so already.
        end_ids: tokens that end a reply, by the rule in `endings`.
    """

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    spelling: Spelling
    words: Tokenizer
    words_later: Tokenizer
    literals: Mapping[int, AddedToken]
    bos_id: int | None
    eos_id: int | None
    prefix_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def ids_of(self, *types: TokenType) -> frozenset[int]:
        return frozenset(token_id for token_id, kind in enumerate(self.types) if kind in types)

    def text_of(self, token_id: int | None, /) -> str:
        """The literal text of a special token, empty when there is none."""
        return "" if token_id is None else self.tokens[token_id]

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text may become unless its writer is trusted to use them."""
        return self.ids_of(*CONTROL_TYPES)

    @property
    def control_texts(self) -> dict[str, int]:
        """The literal text of each of them, and its id.

        A single character is no such literal: nothing could break it where a user wrote it.
        """
        return {self.tokens[i]: i for i in sorted(self.control_ids) if len(self.tokens[i]) > 1}
