"""What the figures were measured on. Nothing that changes from one commit to the next."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The machine and the libraries that decide speed.

    Attributes:
        cores: that this process may use.
        load: how busy the machine was beforehand, as the one-minute load average; `None` where there is none.
    """

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    jax: str
    ray: str
    load: float | None


def machine_facts() -> MachineFacts:
    """Asks no accelerator: a chip belongs to one process, and it is not this one's yet."""
    return MachineFacts(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        jax=version("jax"),
        ray=version("ray"),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
