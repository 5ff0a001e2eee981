"""Configurations as Hugging Face writes them, as JSON or YAML: keys and values, nested keys joined by dots.

Knows no keys but the one under which a model that also sees or hears keeps its text model's.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from deployments.lm.checkpoint.metadata import architecture_name, missing, typed
from deployments.lm.checkpoint.source import MetadataValue
from deployments.lm.checkpoint.stored import StoredFile
from deployments.lm.checkpoint.strict_json import parse_object
from deployments.messages.errors import CheckpointError

_TEXT = "text_config"
_YAML = (".yaml", ".yml")
_LONGEST = 16 * 1024 * 1024
_LONGEST_YAML = 256 * 1024
_DEEPEST = 8


class _Loader(yaml.CSafeLoader):
    """Numbers as JSON has them are numbers: YAML 1.1 takes `1e-06`, without a point, for a word."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


class Configured:
    """What a checkpoint says of itself that such a configuration describes.

    Args:
        path: of the configuration.
        name: the checkpoint's.
        source: the configuration's name in errors.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """

    def __init__(self, path: Path, /, *, name: str, source: str) -> None:
        self.name = name
        self._source = source
        self._metadata = read_config(path)

    @property
    def architecture(self) -> str:
        return architecture_name(self.require("model_type", str), source=self.name)

    @property
    def metadata_keys(self) -> frozenset[str]:
        return frozenset(self._metadata)

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        """The value under `key`, or `None` when there is none or null.

        Raises:
            CheckpointError: the value is of another type.
        """
        value = self._metadata.get(key)
        return None if value is None else typed(value, kind, key=key, source=self._source)

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        """Like `get`, but a missing key is a `CheckpointError`."""
        value = self.get(key, kind)
        if value is None:
            raise missing(key, source=self._source)
        return value


def read_config(path: Path, /) -> Mapping[str, object]:
    """Keys and values, those of the text model taken out of it.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """
    is_yaml = path.suffix.lower() in _YAML
    file = StoredFile(path)
    if file.size > (_LONGEST_YAML if is_yaml else _LONGEST):
        raise CheckpointError(f"{path} has {file.size} bytes, which no configuration has; download it again")
    parse: Callable[[bytearray], dict[str, object]] = _parse_yaml if is_yaml else parse_object
    try:
        config = parse(file.read(0, size=file.size))
        text = config.pop(_TEXT, None)
        if text is not None and not isinstance(text, dict):
            raise ValueError(f"{_TEXT} is {type(text).__name__}, expected an object")
        return dict(_flat(config | (text or {})))
    except ValueError as error:
        remedy = "mend it" if is_yaml else "download it again, or mend it if it is yours"
        raise CheckpointError(f"{path} is damaged ({error}); {remedy}") from error


def _parse_yaml(data: bytearray) -> dict[str, object]:
    try:
        # A few aliases of aliases are more than any memory holds.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(data.decode(), Loader=_Loader)):
            raise ValueError("it has aliases, which no configuration needs")
        value = yaml.load(data.decode(), Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(value, dict):
        raise ValueError(f"it is {type(value).__name__}, expected keys and values")
    return value


def _flat(value: Mapping[str, object], *outer: str) -> Iterator[tuple[str, object]]:
    if len(outer) > _DEEPEST:
        raise ValueError("its objects are nested too deep")
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, *outer, str(key))
        elif inner is not None:
            yield ".".join((*outer, str(key))), inner
