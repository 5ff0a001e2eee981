"""YAML with the surprises taken out: `on` and `off` are words, no key twice, no anchors, a limit to nesting."""

import re
from typing import Any

import yaml

_DEEPEST = 32


class YamlTrouble(Exception):
    """YAML that is refused, and the node where."""

    def __init__(self, message: str, node: yaml.Node) -> None:
        super().__init__(message, node)
        self.message = message
        self.node = node


class Loader(yaml.CSafeLoader):
    """Reads plain data. A bare scalar is a number, `true`, `false` or `null` as in YAML 1.2, else a word: `on` is."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the base class declares it, and not as a ClassVar


for _name, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"~|null|", ["~", "n", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), list(_first))


def check_plain(root: yaml.Node, /) -> None:
    """Walks a document before anything is made of it.

    Raises:
        YamlTrouble: a node is used twice, a key is given twice or is no word, or the nesting is deep.
    """
    seen: set[int] = set()
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if id(node) in seen:
            raise YamlTrouble("anchors and aliases are not used in gates; write the value out", node)
        seen.add(id(node))
        if depth > _DEEPEST:
            raise YamlTrouble("this is nested too deeply for gates", node)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        waiting += [(inner, depth + 1) for inner in _children(node)]


def located(node: Any, /) -> tuple[int, int]:
    """The line and column where a node begins, from 1."""
    return (node.start_mark.line + 1, node.start_mark.column + 1) if isinstance(node, yaml.Node) else (0, 0)


def _check_keys(node: yaml.MappingNode) -> None:
    keys: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            raise YamlTrouble("keys of gates are words", key)
        if key.value in keys:
            raise YamlTrouble(f"key {key.value!r} is given twice", key)
        keys.add(key.value)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return []
