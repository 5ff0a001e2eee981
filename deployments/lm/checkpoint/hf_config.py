"""Configurations as Hugging Face writes them, as JSON or YAML: keys and values, nested keys joined by dots.

Knows no keys but the one under which a model that also sees or hears keeps its text model's.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

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


def read_config(path: Path, /) -> Mapping[str, object]:
    """Keys and values, those of the text model taken out of it.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """
    is_yaml = path.suffix in _YAML
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
        remedy = "mend it" if is_yaml else "download it again"
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
