"""The vocabulary of a GGUF file, checked, and the `tokenizers.Tokenizer` made from it.

Knows metadata and byte-level BPE; not chat templates, not requests.
"""

from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.tokenizer.endings import END_METADATA, END_TEXTS
from deployments.tokenizer.pretokenizers import PreTokenizerFamily, family_of

_PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as the GGUF format numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_CONTROL = (TokenType.CONTROL, TokenType.UNKNOWN)
_NEVER_MERGED = frozenset({*_CONTROL, TokenType.UNUSED})


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Everything a file says about its tokens.

    Attributes:
        tokens: each token's text as the file spells it (normal tokens in the byte-level alphabet).
        merges: pairs in the order of their rank.
        bos_id: put before a prompt when `add_bos` says so and the prompt does not start with it.
        end_ids: tokens that end a reply, by the rule in `endings`.
    """

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[tuple[str, str], ...]
    family: PreTokenizerFamily
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    end_ids: tuple[int, ...]

    def ids_of(self, *types: TokenType) -> frozenset[int]:
        return frozenset(token_id for token_id, kind in enumerate(self.types) if kind in types)

    def text_of(self, token_id: int | None, /) -> str:
        """The literal text of a special token, empty when the file has none."""
        return "" if token_id is None else self.tokens[token_id]

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text may become unless its writer is trusted to use them."""
        return self.ids_of(*_CONTROL)

    @property
    def control_texts(self) -> dict[str, int]:
        """The literal text of each of them, and its id.

        A single character is no such literal: nothing could break it where a user wrote it.
        """
        return {self.tokens[i]: i for i in sorted(self.control_ids) if len(self.tokens[i]) > 1}


def read_vocabulary(file: GgufFile, /) -> Vocabulary:
    """Reads and checks the vocabulary.

    Raises:
        UnknownTokenizer: the kind of vocabulary or the pre-tokenizer is not known here.
        CheckpointError: the metadata contradicts itself.
    """
    model = file.require(_PREFIX + "model", str)
    if model != "gpt2":
        raise UnknownTokenizer(
            f"{file.path.name}: tokenizer model '{model}' (tokenizer.ggml.model) is not known here; "
            "use a model with one of: gpt2 (byte-level BPE)"
        )
    family = _read_family(file)
    tokens = _strings(file, key="tokens")
    types = _read_types(file, count=len(tokens))
    bos_id = _special_id(file, key="bos_token_id", count=len(tokens))
    add_bos = file.get(_PREFIX + "add_bos_token", bool)
    ends = [_special_id(file, key=key, count=len(tokens)) for key in END_METADATA]
    ends += [i for i, text in enumerate(tokens) if types[i] is TokenType.CONTROL and text in END_TEXTS]
    vocabulary = Vocabulary(
        tokens=tokens,
        types=types,
        merges=tuple(_split_merge(merge) for merge in _strings(file, key="merges")),
        family=family,
        bos_id=bos_id,
        eos_id=_special_id(file, key="eos_token_id", count=len(tokens)),
        add_bos=family.add_bos if add_bos is None else add_bos,
        end_ids=tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
    )
    _check(vocabulary, name=file.path.name)
    return vocabulary


def build_tokenizer(vocabulary: Vocabulary, /) -> Tokenizer:
    """A tokenizer that has no control token to make, whatever it is given; `PromptEncoder` puts those in."""
    kinds = vocabulary.types
    ids = {text: i for i, text in enumerate(vocabulary.tokens) if kinds[i] not in _NEVER_MERGED}
    bpe = BPE(vocab=ids, merges=list(vocabulary.merges), ignore_merges=vocabulary.family.ignore_merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = vocabulary.family.pre_tokenizer
    # User-defined tokens are text that is always one token, whoever writes it, as in llama.cpp.
    added = [vocabulary.tokens[token_id] for token_id in sorted(vocabulary.ids_of(TokenType.USER_DEFINED))]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    return tokenizer


def _read_family(file: GgufFile, /) -> PreTokenizerFamily:
    name = file.get(_PREFIX + "pre", str)
    if name is None:
        raise UnknownTokenizer(
            f"{file.path.name} does not name its pre-tokenizer (tokenizer.ggml.pre); convert the model again"
        )
    try:
        return family_of(name)
    except UnknownTokenizer as error:
        raise UnknownTokenizer(f"{file.path.name}: {error}") from error


def _strings(file: GgufFile, /, *, key: str) -> tuple[str, ...]:
    values = file.require(_PREFIX + key, list)
    if not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{file.path.name}: {_PREFIX}{key} is not a list of texts; download the file again")
    return tuple(values)


def _read_types(file: GgufFile, /, *, count: int) -> tuple[TokenType, ...]:
    values = file.get(_PREFIX + "token_type", list)
    if values is None:
        return (TokenType.NORMAL,) * count
    kinds = {int(kind): kind for kind in TokenType}
    if len(values) != count or not kinds.keys() >= set(values):
        raise CheckpointError(
            f"{file.path.name}: tokenizer.ggml.token_type does not fit its {count} tokens; convert the model again"
        )
    return tuple(kinds[value] for value in values)


def _special_id(file: GgufFile, /, *, key: str, count: int) -> int | None:
    value = file.get(_PREFIX + key, int)
    if value is not None and not 0 <= value < count:
        raise CheckpointError(
            f"{file.path.name}: {_PREFIX}{key} is {value}, but there are {count} tokens; convert the model again"
        )
    return value


def _split_merge(merge: str, /) -> tuple[str, str]:
    # From the second character on: a token may itself begin with a space.
    space = merge.find(" ", 1)
    return (merge, "") if space < 0 else (merge[:space], merge[space + 1 :])


def _check(vocabulary: Vocabulary, /, *, name: str) -> None:
    if len(set(vocabulary.tokens)) != len(vocabulary.tokens) or "" in vocabulary.tokens:
        raise CheckpointError(f"{name}: tokenizer.ggml.tokens holds empty or repeated texts; convert the model again")
    mergeable = {
        text for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind not in _NEVER_MERGED
    }
    for left, right in vocabulary.merges:
        # A merge that made a control token would let any prompt write it.
        if not (right and left in mergeable and right in mergeable and left + right in mergeable):
            raise CheckpointError(
                f"{name}: the merge '{left} {right}' does not join two ordinary tokens into a third; "
                "convert the model again"
            )
    if vocabulary.add_bos and vocabulary.bos_id is None:
        raise CheckpointError(
            f"{name} asks for a beginning-of-text token (tokenizer.ggml.add_bos_token) but names none "
            "(tokenizer.ggml.bos_token_id); convert the model again"
        )
