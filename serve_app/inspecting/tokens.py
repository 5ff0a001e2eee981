"""Which tokenizer and chat template a checkpoint carries. Knows where they are kept; builds neither."""

import json
from dataclasses import dataclass
from pathlib import Path

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.messages.errors import CheckpointError

_LONGEST_JSON = 200_000_000
_LONGEST_NAME = 64
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What is known of the tokenizer.

    Attributes:
        kind: as its own format names it; `None` where there is none that can be recognised.
        size: how many tokens it has.
        source: where it was found.
    """

    kind: str | None
    size: int | None
    source: str
    has_template: bool


def read_tokenizer(checkpoint: Checkpoint, /) -> TokenizerFacts:
    """Reads names and counts; whatever cannot be read is left out."""
    if checkpoint.format is Format.GGUF:
        return _from_metadata(checkpoint)
    return _from_folder(checkpoint.files[0].parent)


def _from_metadata(checkpoint: Checkpoint) -> TokenizerFacts:
    def text(key: str) -> str | None:
        try:
            return checkpoint.get(key, str)
        except CheckpointError:
            return None

    try:
        tokens = checkpoint.get("tokenizer.ggml.tokens", list)
    except CheckpointError:
        tokens = None
    model, pre = text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")
    names = [_shown(name) for name in (model, pre) if name]
    return TokenizerFacts(
        kind=" / ".join(names) or None,
        size=None if tokens is None else len(tokens),
        source="metadata",
        has_template=bool(text("tokenizer.chat_template")),
    )


def _from_folder(folder: Path) -> TokenizerFacts:
    has_template = any((folder / name).is_file() for name in _TEMPLATES)
    has_template = has_template or bool(_object(folder / "tokenizer_config.json").get("chat_template"))
    whole = _object(folder / "tokenizer.json")
    model = whole.get("model")
    if not isinstance(model, dict):
        source = "tokenizer.model" if (folder / "tokenizer.model").is_file() else "none"
        kind = "SentencePiece" if source == "tokenizer.model" else None
        return TokenizerFacts(kind=kind, size=None, source=source, has_template=has_template)
    kind = model.get("type")
    return TokenizerFacts(
        # Files of before there were several kinds do not say which.
        kind=_shown(kind) if isinstance(kind, str) else "BPE",
        size=_size(vocabulary=model.get("vocab"), added=whole.get("added_tokens")),
        source="tokenizer.json",
        has_template=has_template,
    )


def _size(*, vocabulary: object, added: object) -> int:
    """Token ids in use; added tokens may also be in the vocabulary."""
    ids = set(vocabulary.values()) if isinstance(vocabulary, dict) else set()
    count = len(vocabulary) if isinstance(vocabulary, list) else 0
    extra = [one.get("id") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    return len(ids | {number for number in extra if isinstance(number, int) and number >= count}) + count


def _object(path: Path) -> dict[str, object]:
    try:
        # A pipe would be waited for.
        if not path.is_file() or path.stat().st_size > _LONGEST_JSON:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown(name: str) -> str:
    """A name out of a file that anybody may have made, for a terminal."""
    return "".join(character if character.isprintable() else "?" for character in name[:_LONGEST_NAME])
