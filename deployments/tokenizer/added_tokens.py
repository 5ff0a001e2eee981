"""Tokens that were added to a vocabulary after training, as Hugging Face's files list them. Knows no model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken

from deployments.messages.errors import CheckpointError
from deployments.tokenizer.json_values import Json, boolean, text

# Ids may have holes, but a list is as long as the largest of them.
_MOST_HOLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Added:
    """An added token: its text and how it is found, and whether it is a control token."""

    literal: AddedToken
    special: bool


def read_added(listed: Sequence[Json], /, *, pieces: Mapping[str, int], special: Collection[str]) -> dict[int, Added]:
    """By id. Of two entries for one token the later counts, as it does when `transformers` loads a folder.

    Args:
        pieces: the model's own vocabulary.
        special: texts that are control tokens whatever their entries say, and whether or not they have one.

    Raises:
        CheckpointError: an entry is malformed, or contradicts another or the vocabulary.
    """
    added: dict[int, Added] = {}
    ids = dict(pieces)
    texts = {token_id: piece for piece, token_id in pieces.items()}
    for entry in listed:
        token_id, content = entry.get("id"), text(entry, key="content")
        if type(token_id) is not int or token_id < 0 or not content:
            raise CheckpointError("one of its added tokens has no id or no text")
        if ids.setdefault(content, token_id) != token_id or texts.setdefault(token_id, content) != content:
            raise CheckpointError(f"the added token {content[:40]!r} and another share an id, or it has two")
        added[token_id] = _added(entry, content=content, special=content in special or boolean(entry, key="special"))
    for content in special:
        token_id = ids.get(content)
        if token_id is not None and token_id not in added:
            added[token_id] = _added({}, content=content, special=True)
    return added


def size_of(pieces: Mapping[str, int], /, *, added: Mapping[int, Added]) -> int:
    """One more than the largest id.

    Raises:
        CheckpointError: that is absurd.
    """
    size = 1 + max(max(pieces.values(), default=-1), max(added, default=-1))
    if size > len(pieces) + len(added) + _MOST_HOLES:
        raise CheckpointError(f"its largest id is {size - 1}, but it has {len(pieces)} tokens")
    return size


def _added(entry: Json, /, *, content: str, special: bool) -> Added:
    literal = AddedToken(
        content,
        single_word=boolean(entry, key="single_word"),
        lstrip=boolean(entry, key="lstrip"),
        rstrip=boolean(entry, key="rstrip"),
        normalized=boolean(entry, key="normalized"),
    )
    return Added(literal=literal, special=special)
