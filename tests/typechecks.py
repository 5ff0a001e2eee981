"""Run-time checks of annotations, for the rooms that hold arrays: jaxtyping passes each function here on import.

Everything is left to beartype, but for what it cannot look at as it stands.
"""

import typing
import warnings
from collections.abc import Callable, Iterator

from beartype import beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning
from typing_extensions import is_protocol


def check[F: Callable[..., object]](function: F) -> F:
    """`function`, checked on every call. Protocols in its annotations are compared by the names of their methods."""
    for hint in function.__annotations__.values():
        for part in _parts(hint):
            if _is_kind(part):
                return function
            if isinstance(part, type) and is_protocol(part):
                typing.runtime_checkable(part)
    with warnings.catch_warnings():
        # flax.nnx's own aliases.
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        return beartype(function)


def _is_kind(hint: object) -> bool:
    """Whether this is `type[T]`: its T may be bound to a union with parametrised lists in it."""
    return typing.get_origin(hint) is type and isinstance(typing.get_args(hint)[0], typing.TypeVar)


def _parts(hint: object) -> Iterator[object]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)
