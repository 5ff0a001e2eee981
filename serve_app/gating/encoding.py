"""Gates as YAML for files and people, and one record as JSON for a store of records. Knows no stores.

What cannot be read is refused with its line and column: hand-edited files are the rule. Nothing is guessed: a key given
twice, an anchor, or evidence whose key was changed by hand is an error.
"""

import re
from typing import Any

import msgspec
import yaml

from serve_app.gating.keys import Number
from serve_app.gating.records import ExactnessRecord, Forced, ProfitRecord, Record
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.yaml_nodes import Loader, YamlTrouble, check_plain, located

SCHEMA = 1
MOST_BYTES = 16 * 2**20
"""Longer documents are refused."""

_HEADER = "# Gates of Outrider: what was measured, and what operators forced. Written by `outrider gate`.\n"
_WIDTH = 120
_PATH = re.compile(r" - at `\$(.*)`$")
_KINDS: dict[str, type[Record | Forced]] = {
    "exactness": ExactnessRecord,
    "profit": ProfitRecord,
    "forced": Forced,
}


class GatesUnreadable(Exception):
    """Gates that cannot be read. `str(error)` is a sentence that says where.

    Args:
        line, column: from 1; 0 where there is none.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message, line, column)
        self.message = message
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}" if self.line else self.message


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"version": "schema"}):
    version: int
    revision: Number = 0
    exactness: tuple[ExactnessRecord, ...] = ()
    profit: tuple[ProfitRecord, ...] = ()
    forced: tuple[Forced, ...] = ()


def encode_gates(snapshot: Snapshot, /) -> str:
    """A whole store as YAML; the same text for the same gates."""
    document: dict[str, Any] = {"schema": SCHEMA, "revision": snapshot.revision, **{name: [] for name in _KINDS}}
    for record in snapshot.records:
        kind = field_of(record).partition(":")[0]
        document[kind].append({"id": record.id, **msgspec.to_builtins(record)})
    text = yaml.dump(
        document, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )
    return _HEADER + text


def decode_gates(data: bytes, /) -> Snapshot:
    """Reads what `encode_gates` wrote, or a person.

    Raises:
        GatesUnreadable: it is not that.
    """
    if len(data) > MOST_BYTES:
        raise GatesUnreadable(f"{len(data)} bytes are too many for gates; the most are {MOST_BYTES}")
    root, value = _parsed(data)
    if not isinstance(value, dict):
        raise GatesUnreadable("gates are a mapping that begins with 'schema: 1'; this is empty or something else", 1, 1)
    _check_schema(value, root=root)
    ids = {name: _taken_ids(value.get(name)) for name in _KINDS}
    try:
        document = msgspec.convert(value, _Document)
    except (msgspec.ValidationError, RecursionError) as error:
        message, place = _split(str(error))
        raise _unreadable(message, root=root, path=place) from error
    for name in _KINDS:
        for number, (given, record) in enumerate(zip(ids[name], getattr(document, name), strict=True)):
            if given not in (None, record.id):
                message = (
                    f"the id says {given} and the key makes {record.id}: evidence belongs to the key it was measured "
                    "for, so put the key back or delete the record"
                )
                raise _unreadable(message, root=root, path=f".{name}[{number}].id")
    return Snapshot.of((*document.exactness, *document.profit, *document.forced), revision=document.revision)


def encode_record(record: Record | Forced, /) -> tuple[str, bytes]:
    """The name of a record in a store of records, and its value."""
    return field_of(record), msgspec.json.encode(record)


def field_of(record: Record | Forced, /) -> str:
    """The name of a record in a store of records: what it is, and its id."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(record, cls))
    return f"{kind}:{record.id}"


def decode_record(field: str, /, *, value: bytes) -> Record | Forced:
    """Reads what `encode_record` wrote.

    Raises:
        GatesUnreadable: it is not that.
    """
    kind, _, name = field.partition(":")
    if kind not in _KINDS:
        raise GatesUnreadable(f"field {field!r} is none of {', '.join(_KINDS)}")
    try:
        record: Record | Forced = msgspec.json.decode(value, type=_KINDS[kind])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatesUnreadable(f"field {field!r}: {error}") from error
    if record.id != name:
        raise GatesUnreadable(f"field {field!r} holds a record whose key makes {record.id}; delete it")
    return record


def _parsed(data: bytes) -> tuple[yaml.Node | None, Any]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise GatesUnreadable("this byte is not UTF-8", line, column) from error
    try:
        loader = Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                check_plain(root)
            return root, None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except YamlTrouble as error:
        raise GatesUnreadable(error.message, *located(error.node)) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise GatesUnreadable(f"not YAML: {error.problem or error.context}", *where) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise GatesUnreadable(f"not YAML: {error.reason}", *where) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GatesUnreadable(f"not YAML: {error}") from error


def _check_schema(value: dict[Any, Any], *, root: yaml.Node | None) -> None:
    schema = value.get("schema")
    if schema == SCHEMA and type(schema) is int:
        return
    if isinstance(schema, int) and schema > SCHEMA:
        message = f"schema {schema} was written by a newer Outrider; this one reads {SCHEMA}, so bring it up to date"
    else:
        message = f"gates need 'schema: {SCHEMA}'"
    raise _unreadable(message, root=root, path=".schema")


def _taken_ids(records: Any) -> list[Any]:
    """Takes the ids out of raw records: they are for people, and follow from the keys."""
    if not isinstance(records, list):
        return []
    return [record.pop("id", None) if isinstance(record, dict) else None for record in records]


def _split(message: str) -> tuple[str, str]:
    found = _PATH.search(message)
    return (message[: found.start()], found.group(1)) if found else (message, "")


def _unreadable(message: str, *, root: yaml.Node | None, path: str) -> GatesUnreadable:
    node = root
    for name, number in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        inner = _inner(node, name=name, number=number)
        if inner is None:
            break
        node = inner
    where = f"{path.lstrip('.')}: " if path else ""
    return GatesUnreadable(f"{where}{message}", *located(node))


def _inner(node: yaml.Node | None, *, name: str, number: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and number:
        return next(iter(node.value[int(number) :]), None)
    if isinstance(node, yaml.MappingNode) and name:
        return next((value for key, value in node.value if key.value == name), None)
    return None
