"""Values of parsed JSON that nobody has checked. Knows types, no keys."""

from collections.abc import Mapping, Sequence

from deployments.messages.errors import CheckpointError

type Json = Mapping[str, object]


def text(value: Json, /, *, key: str) -> str | None:
    """The text under `key`, `None` where there is none or null."""
    return _typed(value, key=key, kind=str, what="a text")


def boolean(value: Json, /, *, key: str) -> bool:
    """The truth value under `key`, false where there is none or null."""
    return bool(_typed(value, key=key, kind=bool, what="true or false"))


def objects(value: Json, /, *, key: str) -> Sequence[Json]:
    """The objects in the list under `key`, none where there is no list or null."""
    found = _typed(value, key=key, kind=list, what="a list of objects") or []
    if not all(isinstance(one, dict) for one in found):
        raise CheckpointError(f"'{key}' is not a list of objects")
    return found


def _typed[T](value: Json, /, *, key: str, kind: type[T], what: str) -> T | None:
    found = value.get(key)
    if found is not None and not isinstance(found, kind):
        raise CheckpointError(f"'{key}' is not {what}")
    return found
