"""JSON of files that nobody has looked at: whatever is wrong with it is a `ValueError`. Knows no keys."""

import json
from collections.abc import Callable

# More than any model needs: three for each tensor. An empty list takes two bytes in a file and sixty in memory.
_MOST_PARTS = 1_000_000

type Pairs = list[tuple[str, object]]


def parse_object(
    data: bytes | bytearray, /, *, from_pairs: Callable[[Pairs], dict[str, object]] = dict
) -> dict[str, object]:
    """The object that the bytes spell.

    Args:
        from_pairs: makes a mapping of each object's names and values, in their order.

    Raises:
        ValueError: they are not UTF-8, not JSON, nested too deep, too much, or no object.
    """
    if data.count(b"[") + data.count(b"{") > _MOST_PARTS:
        raise ValueError(f"its JSON has more than {_MOST_PARTS} lists and objects")
    try:
        value = json.loads(data.decode(), object_pairs_hook=from_pairs)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"its JSON is {type(value).__name__}, expected an object")
    return value


def unique(pairs: Pairs, /) -> dict[str, object]:
    """The pairs as a mapping; a name that comes twice is a `ValueError`."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"its JSON has {twice[:100]!r} twice")
    return found
