"""The vocabulary of a `tokenizer.json`, the file of Hugging Face's `tokenizers` library, checked and built.

Normaliser, pre-tokenizer and BPE are the library's own, with the file's settings. What differs is what surrounds them:
control tokens are taken out, so that only `PromptEncoder` can make them, and so are truncation, padding and dropout.
Knows parsed files; not where they lie.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from deployments.messages.errors import CheckpointError, UnknownTokenizer
from deployments.tokenizer.added_tokens import read_added, size_of
from deployments.tokenizer.endings import ending_ids
from deployments.tokenizer.json_values import Json, boolean, objects, text
from deployments.tokenizer.vocabulary import CONTROL_TYPES, SPACE, Spelling, TokenType, Vocabulary

_SENTENCEPIECE_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


@dataclass(frozen=True, kw_only=True)
class Named:
    """What the other files of the folder say about tokens.

    Attributes:
        texts: the special tokens by name (`bos_token`, `eos_token`, ...).
        more_special: texts that are special without a name.
        added: `added_tokens_decoder` of tokenizer_config.json.
        add_bos: `add_bos_token` of tokenizer_config.json.
        end_ids: `eos_token_id` of generation_config.json.
    """

    texts: Mapping[str, str]
    more_special: Sequence[str] = ()
    added: Sequence[Json] = ()
    add_bos: bool | None = None
    end_ids: Sequence[int] = ()


def read_tokenizer_json(file: Json, /, *, named: Named, source: str) -> Vocabulary:
    """The vocabulary that a parsed file and its neighbours describe.

    Args:
        source: what to call the file in errors.

    Raises:
        UnknownTokenizer: it holds a kind of tokenizer that is not known here.
        CheckpointError: it contradicts itself.
    """
    try:
        return _read(file, named=named)
    except UnknownTokenizer as error:
        raise UnknownTokenizer(f"{source}: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}; download the model again") from error


def _read(file: Json, /, *, named: Named) -> Vocabulary:
    model = _bpe_of(file)
    pieces = _pieces(model)
    unknown = text(model, key="unk_token")
    special = {*named.texts.values(), *named.more_special}
    added = read_added((*objects(file, key="added_tokens"), *named.added), pieces=pieces, special=special)
    size = size_of(pieces, added=added)
    tokens = [""] * size
    types = [TokenType.UNUSED] * size
    fallback = boolean(model, key="byte_fallback")
    for piece, token_id in pieces.items():
        tokens[token_id] = piece
        types[token_id] = TokenType.BYTE if fallback and _is_byte(piece) else TokenType.NORMAL
    for token_id, one in added.items():
        tokens[token_id] = one.literal.content
        types[token_id] = TokenType.CONTROL if one.special else TokenType.USER_DEFINED
    if unknown is not None and unknown in pieces:
        types[pieces[unknown]] = TokenType.UNKNOWN
    ids = {token: token_id for token_id, token in enumerate(tokens) if token}
    bpe = _build(model, ids=ids, types=types, unknown=unknown)
    fixed = [one.literal for _, one in sorted(added.items()) if not one.special]
    words = _words(file, bpe=bpe, fixed=fixed)
    later = _without_first_space(file)
    bos_id, eos_id = (ids.get(named.texts.get(name, "")) for name in ("bos_token", "eos_token"))
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types),
        spelling=_spelling(file),
        words=words,
        words_later=words if later == file else _words(later, bpe=bpe, fixed=fixed),
        # What is found in normalised text only comes later, in the library's own hands.
        literals={i: one.literal for i, one in added.items() if one.special or not one.literal.normalized},
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=_prefix(file, named=named, bos_id=bos_id, ids=ids),
        end_ids=ending_ids((*_within(named.end_ids, size=size), eos_id), tokens=tokens, types=types),
    )


def _bpe_of(file: Json, /) -> Json:
    model = file.get("model")
    if not isinstance(model, dict):
        raise CheckpointError("it has no model")
    kind = model.get("type", "BPE" if "merges" in model else "of no type")
    if kind != "BPE":
        raise UnknownTokenizer(f"a tokenizer of the kind '{kind}' is not known here; use a model with one of: BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnknownTokenizer(f"BPE with {key} is not known here; use a model without")
    return model


def _pieces(model: Json, /) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(type(token_id) is int and token_id >= 0 for token_id in vocab.values()):
        raise CheckpointError("its vocabulary is not a table of tokens and ids")
    if "" in vocab or len(set(vocab.values())) != len(vocab):
        raise CheckpointError("its vocabulary holds an empty token, or two tokens with one id")
    return dict(vocab)


def _is_byte(piece: str, /) -> bool:
    return len(piece) == 6 and piece[:3] == "<0x" and piece[5] == ">" and piece[3:5].isalnum() and piece.isascii()


def _build(model: Json, /, *, ids: Mapping[str, int], types: Sequence[TokenType], unknown: str | None) -> BPE:
    whole_words = boolean(model, key="ignore_merges")
    controls = {token for token, token_id in ids.items() if types[token_id] in CONTROL_TYPES}
    # The unknown token is made of what has no token, never of its own text; where whole words count it could be.
    kept = None if whole_words or unknown not in ids else unknown
    return BPE(
        vocab={token: token_id for token, token_id in ids.items() if token not in controls or token == kept},
        merges=list(_merges(model, ids=ids, controls=controls)),
        unk_token=kept,
        fuse_unk=boolean(model, key="fuse_unk"),
        byte_fallback=boolean(model, key="byte_fallback"),
        ignore_merges=whole_words,
    )


def _merges(model: Json, /, *, ids: Mapping[str, int], controls: set[str]) -> Iterator[tuple[str, str]]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise CheckpointError("it has no list of merges")
    for merge in merges:
        # Older files write both parts into one text.
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (
            isinstance(parts, list) and len(parts) == 2 and isinstance(parts[0], str) and isinstance(parts[1], str)
        ):
            raise CheckpointError("one of its merges is not a pair of tokens")
        left, right = parts
        joined = left + right
        if not (left in ids and right in ids and joined in ids):
            raise CheckpointError(
                f"the merge of {left[:40]!r} and {right[:40]!r} does not join two tokens into a third"
            )
        # Its text never gets here whole, so a merge that makes a control token is never used, unless to forge one.
        if not (left in controls or right in controls or joined in controls):
            yield left, right


def _words(file: Json, /, *, bpe: BPE, fixed: Sequence[AddedToken]) -> Tokenizer:
    kept = {key: file.get(key) for key in ("normalizer", "pre_tokenizer")}
    frame = {"version": "1.0", "added_tokens": [], **kept, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    try:
        tokenizer = Tokenizer.from_str(json.dumps(frame))
    except Exception as error:
        raise UnknownTokenizer(
            f"its normaliser or pre-tokenizer is not known here ({' '.join(str(error).split())[:200]}); "
            "use a model with another tokenizer"
        ) from error
    tokenizer.model = bpe
    tokenizer.add_tokens(list(fixed))
    return tokenizer


def _without_first_space(file: Json, /) -> Json:
    """The same for text that is not the beginning, to which `prepend_scheme: first` adds no space."""
    pre_tokenizer = file.get("pre_tokenizer")
    return {**file, "pre_tokenizer": pre_tokenizer and _never_first(pre_tokenizer)}


def _never_first(step: object, /) -> object:
    if isinstance(step, list):
        return [_never_first(one) for one in step]
    if not isinstance(step, dict):
        return step
    is_first = step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"
    kept = {key: _never_first(value) if key == "pretokenizers" else value for key, value in step.items()}
    return {**kept, "prepend_scheme": "never"} if is_first else kept


def _spelling(file: Json, /) -> Spelling:
    kinds = set(_kinds(file.get("decoder"), parts="decoders"))
    if not kinds:
        kinds = set(_kinds(file.get("pre_tokenizer"), parts="pretokenizers")) & {"ByteLevel", "Metaspace"}
    if kinds == {"ByteLevel"}:
        return Spelling.BYTE_LEVEL
    if kinds and kinds <= _SENTENCEPIECE_DECODERS and SPACE in json.dumps(file.get("decoder"), ensure_ascii=False):
        return Spelling.SENTENCEPIECE
    raise UnknownTokenizer(
        f"how it decodes tokens ({', '.join(sorted(kinds)) or 'no decoder'}) is not known here; "
        "use a model with byte-level or SentencePiece tokens"
    )


def _kinds(step: object, /, *, parts: str) -> Iterator[str]:
    if isinstance(step, dict):
        inner = step.get(parts)
        if isinstance(inner, list):
            for one in inner:
                yield from _kinds(one, parts=parts)
        else:
            yield str(step.get("type"))


def _prefix(file: Json, /, *, named: Named, bos_id: int | None, ids: Mapping[str, int]) -> tuple[int, ...]:
    """`add_bos_token` where it is given, else what the post-processor puts before a text."""
    if named.add_bos is not None:
        if named.add_bos and bos_id is None:
            raise CheckpointError("tokenizer_config.json asks for a beginning-of-text token and names none")
        return (bos_id,) if named.add_bos and bos_id is not None else ()
    processor = file.get("post_processor")
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "TemplateProcessing":
            return tuple(_before_text(step, ids=ids))
    return ()


def _before_text(step: Json, /, *, ids: Mapping[str, int]) -> Iterator[int]:
    for part in objects(step, key="single"):
        special = part.get("SpecialToken")
        if not isinstance(special, dict):
            return
        token_id = ids.get(str(special.get("id")))
        if token_id is None:
            raise CheckpointError("its post-processor puts a token before texts that is not in the vocabulary")
        yield token_id


def _within(token_ids: Sequence[int], /, *, size: int) -> Sequence[int]:
    if any(not 0 <= token_id < size for token_id in token_ids):
        raise CheckpointError(f"generation_config.json ends replies with a token beyond the {size} that there are")
    return token_ids
