"""Parts of keys that have to be worked out: the drafter's fingerprint, and the chip's name and abilities.

Looks at this machine and at what a device says of itself; starts nothing.
"""

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import msgspec

from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.keys import ChipKey

CPUINFO = Path("/proc/cpuinfo")

# The instruction sets that decide how a compiler, or our kernels, form sums and products.
_FEATURES = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx512\w*|avx_\w+|avx10\w*|amx_\w+|asimd|asimddp|asimdhp|fphp|i8mm|bf16|sve\w*|sme(?!p)\w*"
)
_X86 = ("cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
_WRITING_OUT = ("--xla_dump", "--xla_hlo_dump", "--xla_log")


class Device(Protocol):
    """What is asked of a `jax.Device`."""

    @property
    def platform(self) -> str: ...

    @property
    def device_kind(self) -> str: ...


def drafter_fingerprint(
    settings: Any, /, *, hashes: FileHashes, files: Mapping[str, Sequence[Path]] | None = None
) -> str:
    """A hash over a drafter's settings.

    Args:
        settings: a dataclass or a struct; its type counts.
        files: the settings that name files, and the files: their contents count, wherever they lie.

    Raises:
        OSError: a file cannot be read.
    """
    values = msgspec.to_builtins(settings)
    for name, paths in (files or {}).items():
        if name not in values:
            raise KeyError(f"{type(settings).__name__} has no setting {name!r}")
        values[name] = hashes.of_all(paths)
    text = type(settings).__name__.encode() + b"\n" + msgspec.json.encode(values, order="deterministic")
    return hashlib.sha256(text).hexdigest()


def chip_key(device: Device, /, *, cpuinfo: Path = CPUINFO) -> ChipKey:
    """The kind of chip a device is.

    Args:
        cpuinfo: where Linux describes processors.
    """
    if device.platform != "cpu":
        return ChipKey(kind=device.device_kind)
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return processor_key(text, threads=len(os.sched_getaffinity(0)))


def processor_key(cpuinfo: str, /, *, threads: int) -> ChipKey:
    """The kind of processor that Linux describes so; the first one counts."""
    first = cpuinfo.strip().split("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    numbers = [f"{name.removeprefix('cpu ')} {fields[name]}" for name in _X86 if fields.get(name)]
    numbers = numbers or [f"{name.removeprefix('CPU ')} {fields[name]}" for name in _ARM if fields.get(name)]
    name = fields.get("model name") or platform.machine() or "processor"
    features = set((fields.get("flags") or fields.get("Features") or "").split())
    return ChipKey(
        kind=f"{name} ({', '.join(numbers)})" if numbers else name,
        features=tuple(sorted(feature for feature in features if _FEATURES.fullmatch(feature))),
        threads=threads,
    )


def compiler_flags(environment: Mapping[str, str], /) -> tuple[str, ...]:
    """What variables tell the compilers, but for what they are to write out; their order counts for nothing."""
    flags = {
        flag
        for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
        for flag in environment.get(name, "").split()
        if not flag.startswith(_WRITING_OUT)
    }
    return tuple(sorted(flags))


def versions(device: Device, /) -> dict[str, str]:
    """The versions of `jax`, `jaxlib` and, for a TPU, `libtpu`, by the names they have in a key."""
    names = ("jax", "jaxlib", "libtpu") if device.platform == "tpu" else ("jax", "jaxlib")
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
