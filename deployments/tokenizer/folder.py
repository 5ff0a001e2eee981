"""The files of a model folder that say how its text is encoded, as Hugging Face's libraries write them.

`tokenizer.json` is required; `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`,
`config.json` and the chat template's own file add to it. Knows names and which file counts where two say the same.
"""

from collections.abc import Iterator
from pathlib import Path

from deployments.lm.checkpoint.strict_json import parse_object
from deployments.messages.errors import CheckpointError, UnknownTemplate, UnknownTokenizer
from deployments.tokenizer.json_values import Json
from deployments.tokenizer.tokenizer_json import Named, read_tokenizer_json
from deployments.tokenizer.vocabulary import Vocabulary

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_GENERATION = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
_OLD_TEMPLATE = "chat_template.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
_DEFAULT = "default"
_LARGEST = 1 << 28
"""Bytes; the largest in use have 33 million."""


class TokenizerFolder:
    """The files of one folder.

    Raises:
        UnknownTokenizer: there is no tokenizer.json.
        CheckpointError: a file is not what it should be.
    """

    def __init__(self, path: Path, /) -> None:
        self._path = path
        if not (path / _TOKENIZER).is_file():
            raise UnknownTokenizer(
                f"{path} has no {_TOKENIZER}; add the one of the model's repository, or make it with transformers "
                "(`AutoTokenizer.from_pretrained(...).save_pretrained(...)`), or use a GGUF file of this model"
            )
        self._config = self._read(_CONFIG)

    def vocabulary(self) -> Vocabulary:
        """Reads and checks the vocabulary; raises as `read_tokenizer_json` does."""
        named = Named(
            texts=dict(self._special_texts()),
            more_special=tuple(self._more_special()),
            added=tuple(self._added()),
            add_bos=_truth(self._config, "add_bos_token"),
            end_ids=self._end_ids(),
        )
        return read_tokenizer_json(self._read(_TOKENIZER), named=named, source=f"{self._path.name}/{_TOKENIZER}")

    def template(self) -> str | None:
        """The chat template's source: its own file before tokenizer_config.json, as in transformers.

        Raises:
            UnknownTemplate: there are several, and none is the default.
        """
        if (self._path / _TEMPLATE).is_file():
            return self._bytes(_TEMPLATE).decode(errors="replace")
        found = self._config.get("chat_template") or self._read(_OLD_TEMPLATE).get("chat_template")
        if isinstance(found, list):
            return self._named_template(found)
        if found is not None and not isinstance(found, str):
            raise UnknownTemplate(f"{self._path.name}: 'chat_template' is not a text; use another model")
        return found

    def _named_template(self, listed: list[object], /) -> str:
        named = {str(one.get("name")): one.get("template") for one in listed if isinstance(one, dict)}
        chosen = named.get(_DEFAULT, next(iter(named.values())) if len(named) == 1 else None)
        if not isinstance(chosen, str):
            raise UnknownTemplate(
                f"{self._path.name}: none of its chat templates ({', '.join(named)}) is called '{_DEFAULT}'; "
                f"put the one to use into {_TEMPLATE}"
            )
        return chosen

    def _special_texts(self) -> Iterator[tuple[str, str]]:
        listed = self._read("special_tokens_map.json")
        for name in _SPECIAL:
            text = _content(self._config.get(name)) or _content(listed.get(name))
            if text:
                yield name, text

    def _more_special(self) -> Iterator[str]:
        for name in _MORE_SPECIAL:
            found = self._config.get(name)
            values = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
            yield from filter(None, map(_content, values))

    def _added(self) -> Iterator[Json]:
        found = self._config.get("added_tokens_decoder")
        for number, entry in found.items() if isinstance(found, dict) else ():
            if not isinstance(entry, dict) or not (number.isascii() and number.isdigit()):
                raise CheckpointError(
                    f"{self._path.name}/{_CONFIG}: 'added_tokens_decoder' is not a table of tokens by id; "
                    "download the model again"
                )
            yield {**entry, "id": int(number[:20])}

    def _end_ids(self) -> tuple[int, ...]:
        """Those of generation_config.json. What config.json says counts only where that says nothing."""
        model = self._read("config.json")
        texts = model.get("text_config")
        for values in (self._read(_GENERATION), model, texts if isinstance(texts, dict) else {}):
            found = values.get("eos_token_id")
            listed = found if isinstance(found, list) else [found]
            if listed and all(type(one) is int for one in listed):
                return tuple(listed)
        return ()

    def _read(self, name: str, /) -> Json:
        if not (self._path / name).is_file():
            return {}
        try:
            return parse_object(self._bytes(name))
        except ValueError as error:
            raise CheckpointError(
                f"{self._path.name}/{name} cannot be read ({str(error)[:200]}); download it again"
            ) from error

    def _bytes(self, name: str, /) -> bytes:
        path = self._path / name
        try:
            if path.stat().st_size > _LARGEST:
                raise CheckpointError(f"{self._path.name}/{name} is larger than any such file; download it again")
            return path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); check its permissions") from error


def _content(value: object, /) -> str | None:
    """Special tokens are written as their text, or as an object that holds it."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _truth(values: Json, key: str) -> bool | None:
    found = values.get(key)
    return found if isinstance(found, bool) else None
