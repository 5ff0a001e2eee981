"""Ends what a start of Ray that failed leaves behind: processes of ours that name its folder."""

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")


def end_processes(folder: str, /) -> None:
    """Ends every process that this one, or one of its own, has started for `folder`; none where there is no `/proc`."""
    for command in _PROCESSES.glob("[0-9]*/cmdline"):
        number = int(command.parent.name)
        # One that ends meanwhile is what is wanted.
        with suppress(OSError):
            if _names(command.read_bytes(), folder=folder) and _is_ours(number):
                os.kill(number, signal.SIGKILL)


def _names(command: bytes, *, folder: str) -> bool:
    """Whether a command line has the folder or something in it."""
    return f"{folder}/".encode() in command or any(part.endswith(folder.encode()) for part in command.split(b"\0"))


def _is_ours(number: int) -> bool:
    """Whether this process is among its ancestors."""
    while number > 1:
        # After the name, which may hold anything and stands in brackets: the state, and the parent.
        number = int((_PROCESSES / str(number) / "stat").read_text().rpartition(")")[2].split()[1])
        if number == os.getpid():
            return True
    return False
