"""Run-time checks of annotations, for the rooms that hold arrays: jaxtyping passes each function here on import.

Everything is left to beartype, but for what it cannot look at as it stands.
"""

import typing
import warnings
from collections.abc import Callable, Iterator

from beartype import beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning
from typing_extensions import is_protocol

# `type[T]` with T bound to a union that has parametrised lists in it.
NOT_CHECKABLE = frozenset({"deployments.lm.checkpoint.gguf"})


def check[F: Callable[..., object]](function: F) -> F:
    """`function`, checked on every call. Protocols in its annotations are compared by the names of their methods."""
    if function.__module__ in NOT_CHECKABLE:
        return function
    for hint in function.__annotations__.values():
        for part in _parts(hint):
            if isinstance(part, type) and is_protocol(part):
                typing.runtime_checkable(part)
    with warnings.catch_warnings():
        # flax.nnx's own aliases.
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        return beartype(function)


def _parts(hint: object) -> Iterator[object]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)
