"""What a failed start leaves behind is ended: processes of ours in that folder, and no others."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from serve_app.leftovers import end_processes

_WAITING = "import sys, time; print('up', flush=True); time.sleep(60)"


def test_only_our_own_processes_of_the_folder_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    inside = [sys.executable, "-c", _WAITING, f"--dir={folder}/logs"]
    itself, another, with_longer_name = (
        [sys.executable, "-c", _WAITING, f"--dir={path}"] for path in (folder, tmp_path / "other", f"{folder}-old")
    )
    # Its parent is gone before it is looked for: nobody here has started it.
    orphan = subprocess.Popen(["setsid", "--fork", *inside], stdout=subprocess.PIPE, text=True)
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for command in (inside, itself, another, with_longer_name)
    ]
    try:
        for process in (orphan, *processes):
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        orphan.wait(timeout=10)
        end_processes(str(folder))
        assert [process.wait(timeout=10) for process in processes[:2]] == [-9, -9]
        assert [process.poll() for process in processes[2:]] == [None, None]
        assert pgrep(inside[-1])
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        for number in pgrep(inside[-1]):
            os.kill(number, signal.SIGKILL)
        orphan.communicate()


def pgrep(argument: str) -> list[int]:
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in command.read_bytes().split(b"\0"):
                found.append(int(command.parent.name))
    return found
