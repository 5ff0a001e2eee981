"""Whether a verifier fits its device: weights, cache and temporaries against what is free.

Knows bytes and where this machine says how many are free; not what they are used for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployments.messages.errors import ConfigError

_MIB = 1024 * 1024
_SMALLER = "take a smaller model or --precision int8"


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What a verifier takes, in bytes.

    Attributes:
        page: one page of the cache, all layers.
        pages: with the scratch page.
        least_pages: as few as a context of one request takes, and the scratch page.
        states: of recurrent layers, and what they keep of drafts.
        temporaries: what the largest program needs while it runs; 0 while that is not known.
        free: what the device has for all of it; `None` when it does not say.
    """

    weights: int
    page: int
    pages: int
    least_pages: int
    temporaries: int
    free: int | None
    states: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.page * self.pages + self.states + self.temporaries

    def check(self) -> None:
        """Raises `ConfigError` when it does not fit; the sentence says what to lower."""
        if self.free is None or self.total <= self.free:
            return
        room = (self.free - self.weights - self.states - self.temporaries) // max(self.page, 1)
        if room >= self.least_pages:
            remedy = f"set verifier.cache_pages to at most {room - 1}, or lower --slots or --ctx"
        else:
            states = "verifier.kept_states, --slots or " if self.states else ""
            remedy = f"lower {states}--ctx, {_SMALLER}, or free memory"
        raise ConfigError(f"{self} do not fit the {_size(self.free)} that are free; {remedy}")

    def __str__(self) -> str:
        cache = f"{_size(self.page * self.pages)} of cache ({self.pages} pages)"
        if self.states:
            cache += f", {_size(self.states)} of recurrent states"
        working = f" and {_size(self.temporaries)} for the largest window" if self.temporaries else ""
        return f"{_size(self.weights)} of weights, {cache}{working}"


def check_weights(count: int, /, *, free: int | None) -> None:
    """Raises `ConfigError` when so many bytes of weights alone do not fit; so that nothing is read in vain."""
    if free is not None and count > free:
        raise ConfigError(
            f"{_size(count)} of weights do not fit the {_size(free)} that are free; {_SMALLER}, or free memory"
        )


def free_host_memory(root: Path = Path("/"), /) -> int | None:
    """What this process may still take: the machine's available memory, or less where a control group limits it."""
    known = [*_available(root), *_under_limits(root)]
    return min(known) if known else None


def _available(root: Path) -> Iterator[int]:
    for line in _read(root / "proc" / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _under_limits(root: Path) -> Iterator[int]:
    """Per control group of this process, from its own up to the root: the limit less what is in use."""
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups = root / "sys" / "fs" / "cgroup"
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            groups, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = groups / path.lstrip("/")
        for folder in (own, *own.parents):
            yield from _under_limit(folder, names=names)
            if folder == groups:
                break


def _under_limit(folder: Path, *, names: tuple[str, str, str]) -> Iterator[int]:
    limit, used = _read(folder / names[0]).strip(), _read(folder / names[1]).strip()
    if limit.isdecimal() and used.isdecimal():
        # File pages that nobody uses are given up before anybody is refused memory.
        stale = [line.split()[1] for line in _read(folder / "memory.stat").splitlines() if line.startswith(names[2])]
        yield max(int(limit) - int(used) + sum(map(int, stale)), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _size(count: int) -> str:
    return f"{count / _MIB / 1024:.1f} GiB" if count >= 1024 * _MIB else f"{count / _MIB:.1f} MiB"
