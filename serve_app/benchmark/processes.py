"""The service's processes as the kernel sees them: what they are, what they use, and how to halt one. Reads /proc."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_REPLICA = "ray::ServeReplica:"
_OTHERS = "ray"
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, kw_only=True)
class IdleResult:
    """What the service uses while nobody asks it anything.

    Attributes:
        percent: of one core, by deployment; `ray` is everything that is no replica of ours.
    """

    seconds: float
    processes: int
    percent: dict[str, float]
    total_percent: float


@dataclass(frozen=True, kw_only=True)
class _Stat:
    parent: int
    cpu_s: float


def is_supported() -> bool:
    """Whether this system has what this module reads."""
    return (_PROC / "self" / "stat").is_file()


def service_processes(root: int, /) -> dict[int, str]:
    """Descendants of `root` with the deployment each one runs, or `ray`."""
    parents = {pid: stat.parent for pid in _pids() if (stat := _stat(pid)) is not None}
    found: set[int] = {root}
    while fresh := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= fresh
    return {pid: _role(pid) for pid in found - {root}}


def replicas(deployment: str, *, root: int) -> tuple[int, ...]:
    """The process ids of a deployment's replicas."""
    return tuple(pid for pid, role in service_processes(root).items() if role == deployment)


@contextmanager
def halted(pids: Iterable[int], /) -> Iterator[None]:
    """Stops processes for the length of the block; they go on afterwards whatever happens in it."""
    pids = tuple(pids)
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def cpu_seconds(root: int, /) -> dict[str, float]:
    """CPU time so far of all descendants of `root`, by what they are."""
    seconds: dict[str, float] = {}
    for pid, role in service_processes(root).items():
        seconds[role] = seconds.get(role, 0.0) + _cpu_s(pid)
    return seconds


def measure_idle(*, root: int, seconds: float) -> IdleResult:
    """CPU time of all descendants of `root` over a span in which nothing is asked of them."""
    roles = service_processes(root)
    before = {pid: _cpu_s(pid) for pid in roles}
    started = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - started
    percent = dict.fromkeys(sorted(roles.values()), 0.0)
    for pid, role in roles.items():
        # A process that ended meanwhile has used nothing that can still be read.
        percent[role] += 100.0 * max(_cpu_s(pid) - before[pid], 0.0) / took
    return IdleResult(seconds=took, processes=len(roles), percent=percent, total_percent=sum(percent.values()))


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except _GONE:
        return None
    # The name in parentheses may itself hold spaces and parentheses; what follows the last one has fixed places.
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return _Stat(parent=int(fields[1]), cpu_s=ticks / os.sysconf("SC_CLK_TCK"))


def _cpu_s(pid: int) -> float:
    stat = _stat(pid)
    return stat.cpu_s if stat is not None else 0.0


def _role(pid: int) -> str:
    try:
        title = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except _GONE:
        return _OTHERS
    if not title.startswith(_REPLICA):
        return _OTHERS
    # The title is ray::ServeReplica:APPLICATION:DEPLOYMENT, at times with a method after it.
    return title.partition("\0")[0].removeprefix(_REPLICA).split(":")[1].split(".")[0].strip()
