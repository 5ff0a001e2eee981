"""Ends what a start of Ray that failed leaves behind. Knows processes by the folder that their command lines name."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import ray


def end_processes(folder: str, /, *, processes: Path = Path("/proc")) -> None:
    """Ends every process that works in `folder`, and lets Ray forget them; without a `/proc` only the latter."""
    ray.shutdown()
    for command in processes.glob("[0-9]*/cmdline"):
        number = int(command.parent.name)
        # One that ends meanwhile is what is wanted.
        with suppress(OSError):
            if number != os.getpid() and folder.encode() in command.read_bytes():
                os.kill(number, signal.SIGKILL)
