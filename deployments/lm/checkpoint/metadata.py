"""Values of a model file's metadata, of the type that is asked for. Knows no format."""

import math

from deployments.lm.checkpoint.source import MetadataValue
from deployments.messages.errors import CheckpointError

_LONGEST = 64
_LEAST, _MOST = -(2**63), 2**64 - 1


def typed[T: MetadataValue](value: object, kind: type[T], *, key: str, source: str) -> T:
    """The value as a `kind`. A whole number is also a float, and the other way round, as JSON has one kind of number.

    Raises:
        CheckpointError: it is of another type, or a number that no setting can have.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = kind is int or isinstance(value, int)
        if (whole and not _LEAST <= value <= _MOST) or not math.isfinite(value):
            raise CheckpointError(f"{source}: {key} is no number that it can be; download the file again")
        if kind is float:
            value = float(value)
        elif kind is int and value == int(value):
            value = int(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise CheckpointError(f"{source}: {key} is {type(value).__name__}, expected {kind.__name__}")
    return value


def missing(key: str, *, source: str) -> CheckpointError:
    """What to raise when a value is not there."""
    return CheckpointError(f"{source} has no metadata '{key}'; the file is incomplete, download it again")


def architecture_name(name: str, *, source: str) -> str:
    """The name as it stands, if it can be shown to a person.

    Raises:
        CheckpointError: it cannot.
    """
    if not name.isprintable() or not 0 < len(name) <= _LONGEST:
        raise CheckpointError(f"{source}: its architecture is not a name; download the file again")
    return name
