"""The vocabulary of a GGUF file: `tokenizer.ggml.*`, read, checked and built.

Knows metadata; not chat templates, not requests. What the keys mean, and what counts where one is missing, follows
llama.cpp's `src/llama-vocab.cpp`.
"""

from dataclasses import dataclass
from typing import Protocol

from tokenizers import AddedToken, Tokenizer

from deployments.lm.checkpoint.source import MetadataValue
from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.tokenizer.byte_level import byte_level_words
from deployments.tokenizer.endings import END_METADATA, ending_ids
from deployments.tokenizer.pretokenizers import PreTokenizerFamily, family_of
from deployments.tokenizer.sentencepiece import escaped_words, scored_words
from deployments.tokenizer.vocabulary import CONTROL_TYPES, NEVER_MERGED, Spelling, TokenType, Vocabulary

_PREFIX = "tokenizer.ggml."
_GPT2, _LLAMA, _GEMMA4 = "gpt2", "llama", "gemma4"
_LLAMA_DEFAULTS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


class Metadata(Protocol):
    """The part of a GGUF file that counts here."""

    @property
    def name(self) -> str: ...

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None: ...

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T: ...


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What the value of `tokenizer.ggml.model` decides, the words that it makes apart."""

    spelling: Spelling
    words: Tokenizer
    add_bos: bool


def read_gguf_vocabulary(file: Metadata, /) -> Vocabulary:
    """Reads and checks the vocabulary.

    Raises:
        UnknownTokenizer: the kind of vocabulary or the pre-tokenizer is not known here.
        CheckpointError: the metadata contradicts itself.
    """
    model = file.require(_PREFIX + "model", str)
    if model not in (_GPT2, _LLAMA, _GEMMA4):
        raise UnknownTokenizer(
            f"{file.name}: tokenizer model '{model}' (tokenizer.ggml.model) is not known here; use a model with one "
            "of: gpt2 (byte-level BPE), llama (SentencePiece), gemma4 (BPE on SentencePiece texts)"
        )
    family = _read_family(file) if model == _GPT2 else None
    tokens = _read_tokens(file)
    types = _read_types(file, count=len(tokens))
    kind = _read_kind(file, model=model, family=family, tokens=tokens, types=types)
    bos_id = _special_id(file, key="bos_token_id", model=model, count=len(tokens))
    ends = [_special_id(file, key=key, model=model, count=len(tokens)) for key in END_METADATA]
    if kind.add_bos and bos_id is None:
        raise CheckpointError(
            f"{file.name} asks for a beginning-of-text token (tokenizer.ggml.add_bos_token) but names none "
            "(tokenizer.ggml.bos_token_id); convert the model again"
        )
    return Vocabulary(
        tokens=tokens,
        types=types,
        spelling=kind.spelling,
        words=kind.words,
        words_later=kind.words,
        literals={
            token_id: AddedToken(tokens[token_id], normalized=False)
            for token_id, kind in enumerate(types)
            if kind in CONTROL_TYPES or kind is TokenType.USER_DEFINED
        },
        bos_id=bos_id,
        eos_id=ends[0],
        prefix_ids=(bos_id,) if kind.add_bos and bos_id is not None else (),
        end_ids=ending_ids(ends, tokens=tokens, types=types),
    )


def _read_kind(
    file: Metadata,
    /,
    *,
    model: str,
    family: PreTokenizerFamily | None,
    tokens: tuple[str, ...],
    types: tuple[TokenType, ...],
) -> _Kind:
    asked = file.get(_PREFIX + "add_bos_token", bool)
    ids = {text: i for i, text in enumerate(tokens) if types[i] not in NEVER_MERGED}
    # User-defined tokens are text that is always one token, whoever writes it, as in llama.cpp.
    fixed = [text for text, kind in zip(tokens, types, strict=True) if kind is TokenType.USER_DEFINED]
    if family is not None:
        merges = _read_merges(file, ids=ids)
        return _Kind(
            spelling=Spelling.BYTE_LEVEL,
            words=byte_level_words(ids, merges=merges, family=family, fixed=fixed),
            add_bos=family.add_bos if asked is None else asked,
        )
    if model == _GEMMA4:
        # llama.cpp adds the first token to these whatever the file says, and takes the file for wrong.
        words = escaped_words(ids, merges=_read_merges(file, ids=ids), fixed=fixed)
        return _Kind(spelling=Spelling.SENTENCEPIECE, words=words, add_bos=True)
    unknown = _special_id(file, key="unknown_token_id", model=model, count=len(tokens))
    scores = _read_scores(file, count=len(tokens))
    try:
        words = scored_words(
            ids,
            scores=scores,
            bytes_=frozenset(text for text, kind in zip(tokens, types, strict=True) if kind is TokenType.BYTE),
            fixed=fixed,
            unknown=None if unknown is None else (tokens[unknown], unknown),
            space_first=file.get(_PREFIX + "add_space_prefix", bool) is not False,
        )
    except CheckpointError as error:
        raise CheckpointError(f"{file.name}: {error}") from error
    return _Kind(spelling=Spelling.SENTENCEPIECE, words=words, add_bos=asked is not False)


def _read_family(file: Metadata, /) -> PreTokenizerFamily:
    name = file.get(_PREFIX + "pre", str)
    if name is None:
        raise UnknownTokenizer(
            f"{file.name} does not name its pre-tokenizer (tokenizer.ggml.pre); convert the model again"
        )
    try:
        return family_of(name)
    except UnknownTokenizer as error:
        raise UnknownTokenizer(f"{file.name}: {error}") from error


def _read_tokens(file: Metadata, /) -> tuple[str, ...]:
    tokens = _strings(file, key="tokens")
    if len(set(tokens)) != len(tokens) or "" in tokens:
        raise CheckpointError(
            f"{file.name}: tokenizer.ggml.tokens holds empty or repeated texts; convert the model again"
        )
    return tokens


def _strings(file: Metadata, /, *, key: str) -> tuple[str, ...]:
    values = file.require(_PREFIX + key, list)
    if not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{file.name}: {_PREFIX}{key} is not a list of texts; download the file again")
    return tuple(values)


def _read_types(file: Metadata, /, *, count: int) -> tuple[TokenType, ...]:
    values = file.get(_PREFIX + "token_type", list)
    if values is None:
        return (TokenType.NORMAL,) * count
    kinds = {int(kind): kind for kind in TokenType}
    if len(values) != count or not all(isinstance(value, int) and value in kinds for value in values):
        raise CheckpointError(
            f"{file.name}: tokenizer.ggml.token_type does not fit its {count} tokens; convert the model again"
        )
    return tuple(kinds[value] for value in values)


def _read_scores(file: Metadata, /, *, count: int) -> tuple[float, ...]:
    values = file.require(_PREFIX + "scores", list)
    # A score that is not a number has no place in an order.
    if len(values) != count or not all(isinstance(value, int | float) and value == value for value in values):
        raise CheckpointError(
            f"{file.name}: tokenizer.ggml.scores does not fit its {count} tokens; convert the model again"
        )
    return tuple(values)


def _read_merges(file: Metadata, /, *, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges = [_split_merge(merge) for merge in _strings(file, key="merges")]
    for left, right in merges:
        # A merge that made a control token would let any prompt write it.
        if not (right and left in ids and right in ids and left + right in ids):
            raise CheckpointError(
                f"{file.name}: the merge '{left} {right}' does not join two ordinary tokens into a third; "
                "convert the model again"
            )
    return merges


def _split_merge(merge: str, /) -> tuple[str, str]:
    # From the second character on: a token may itself begin with a space.
    space = merge.find(" ", 1)
    return (merge, "") if space < 0 else (merge[:space], merge[space + 1 :])


def _special_id(file: Metadata, /, *, key: str, model: str, count: int) -> int | None:
    value = file.get(_PREFIX + key, int)
    if value is None:
        default = _LLAMA_DEFAULTS.get(key) if model == _LLAMA else None
        return default if default is not None and default < count else None
    if not 0 <= value < count:
        raise CheckpointError(
            f"{file.name}: {_PREFIX}{key} is {value}, but there are {count} tokens; convert the model again"
        )
    return value
