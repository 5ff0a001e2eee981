"""What a measurement belongs to. A record applies where every part of its key is the same, and nowhere else.

Knows values only; who finds them out for a running service is decided elsewhere.
"""

import hashlib
from typing import Annotated, Any

import msgspec

type Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
type Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16,64}$")]
type Count = Annotated[int, msgspec.Meta(ge=1)]
type Number = Annotated[int, msgspec.Meta(ge=0)]

_SHOWN_DIGITS = 12
_ID_DIGITS = 16


class ChipKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kind of chip.

    Attributes:
        kind: as the device calls itself; for a processor its model, family, model number and stepping.
        features: a processor's instruction sets that decide how sums are made.
        threads: a processor's threads that may be used; 0 for an accelerator.
    """

    kind: Name
    features: tuple[Name, ...] = ()
    threads: Number = 0


class ExactnessKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program on a chip: what decides which bits come out.

    Attributes:
        devices: chips that share the model.
        topology: how they are wired, as `2x2x1`; empty for one.
        model: the fingerprint of the model's files, read whole.
        architecture: the model's family.
        kernels: which kernels; native ones with the fingerprint of their library.
        context: the most tokens of a slot.
        cache_pages: pages of the cache.
        ladder: row counts of the windows.
        draft_k: the most drafts of a request in a window.
        draft_rows: the most drafts of all requests in a window.
        libtpu: empty on a processor.
        flags: what the compiler was told, but for what it writes out.
        programs: the fingerprint of all lowered programs.
    """

    chip: ChipKey
    devices: Count = 1
    topology: str = ""
    model: Digest
    architecture: Name
    precision: Name
    kernels: Name
    page_size: Count
    context: Count
    cache_pages: Count
    ladder: tuple[Count, ...]
    slots: Count
    draft_k: Number
    draft_rows: Number
    jax: Name
    jaxlib: Name
    libtpu: str = ""
    flags: tuple[str, ...] = ()
    programs: Digest


class DrafterKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A drafter.

    Attributes:
        kind: as in `timings.draft_kind`.
        fingerprint: of its settings, and of the files of its model if it has one.
        placement: `remote` for a replica of its own, `chip` for the verifier's process.
    """

    kind: Name
    fingerprint: Digest
    placement: Name = "remote"


class ProfitKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A drafter on a program: what decides how fast replies come.

    Attributes:
        k_max: the most drafts it is asked for.
    """

    program: ExactnessKey
    drafter: DrafterKey
    k_max: Count


type Key = ExactnessKey | ProfitKey


def record_id(key: Key, /) -> str:
    """The name of the record with this key: the same in every process, and another for any other key.

    Parts at their defaults are left out of what is hashed, so that parts added later keep the names there are.
    """
    return struct_id(key)


def struct_id(value: msgspec.Struct, /) -> str:
    """A short hash of a struct's type and canonical encoding."""
    text = type(value).__name__.encode() + b"\n" + msgspec.json.encode(value, order="sorted")
    return hashlib.sha256(text).hexdigest()[:_ID_DIGITS]


def differences(key: Key, /, *, other: Key) -> tuple[str, ...]:
    """Which parts differ, as `jax 0.12.0 != 0.12.1`, `key`'s first; the fingerprint of the programs comes last."""
    left, right = _parts(key), _parts(other)
    differing = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    # Whatever else differs mostly shows in the programs too, and explains more.
    differing.sort(key=lambda name: name == "programs")
    return tuple(f"{name} {_shown(left.get(name))} != {_shown(right.get(name))}" for name in differing)


def _parts(key: msgspec.Struct, *, prefix: str = "") -> dict[str, Any]:
    """All parts by name; those of the program stand without a prefix."""
    found: dict[str, Any] = {}
    for name in key.__struct_fields__:
        value = getattr(key, name)
        if isinstance(value, msgspec.Struct):
            found |= _parts(value, prefix="" if name == "program" else f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _shown(value: Any) -> str:
    match value:
        case None:
            return "(not a part)"
        case "":
            return "(none)"
        case tuple():
            return "[" + " ".join(map(str, value)) + "]"
        case str() if len(value) > 2 * _SHOWN_DIGITS and set(value) <= set("0123456789abcdef"):
            return value[:_SHOWN_DIGITS]
        case _:
            return str(value)
