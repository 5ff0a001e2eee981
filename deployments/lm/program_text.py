"""Tells lowered programs apart by what they compute, not by where their source lines lie. Knows text only.

Text of MLIR (`lowered.as_text()`, with debug information or without) and of HLO is understood. Kernels for TPUs travel
in it as encoded bytes, with their locations in a field of their own, which is left out too.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

_STRING = r'"(?:[^"\\]|\\.)*"'
_KERNEL_LOCATIONS = re.compile(
    r'(?:\\22|\\"|")debug_locations(?:\\22|\\"|"): ?(?:\\22|\\"|")[A-Za-z0-9+/=]*(?:\\22|\\"|"),? ?'
)
_MARK = re.compile(rf"{_STRING}|\bloc\(|\bmetadata=\{{")
_BRACKET = re.compile(rf"{_STRING}|[(){{}}]")
_ALIAS = re.compile(r"^\s*#loc\d*\s*=")


def program_fingerprint(texts: Iterable[str], /, *, options: Mapping[str, str] | None = None) -> str:
    """A hash over all programs of a service; their order counts for nothing, since the keys of a dict had none.

    Args:
        texts: each program as it was lowered.
        options: the compiler's, which no program's text names.
    """
    digest = hashlib.sha256()
    for name, value in sorted((options or {}).items()):
        digest.update(hashlib.sha256(f"{name}={value}".encode()).digest())
    for one in sorted(hashlib.sha256(without_locations(text).encode()).digest() for text in texts):
        digest.update(one)
    return digest.hexdigest()


def without_locations(text: str, /) -> str:
    """A program without what says where it was written."""
    return "\n".join(
        line.rstrip() for line in map(_stripped, text.splitlines()) if line.strip() and not _ALIAS.match(line)
    )


def _stripped(line: str) -> str:
    if "debug_locations" in line:
        line = _KERNEL_LOCATIONS.sub("", line)
    if _ALIAS.match(line) or ("loc(" not in line and "metadata=" not in line):
        return line
    return "".join(_kept(line))


def _kept(line: str) -> Iterator[str]:
    begin = place = 0
    while mark := _MARK.search(line, place):
        place = mark.end()
        if not mark.group().startswith('"'):
            yield line[begin : mark.start()].rstrip(" ,")
            begin = place = _closing(line, begin=place)
    yield line[begin:]


def _closing(line: str, *, begin: int) -> int:
    """The place after the bracket that closes the one before `begin`; strings may hold brackets of their own."""
    depth = 1
    for mark in _BRACKET.finditer(line, begin):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return mark.end()
    return len(line)
