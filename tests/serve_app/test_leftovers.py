"""What a failed start leaves behind is ended: processes of that folder, and no others."""

import subprocess
import sys
from pathlib import Path

from serve_app.leftovers import end_processes

_WAITING = "import sys, time; print('up', flush=True); time.sleep(60)"


def test_only_processes_of_the_folder_are_ended(tmp_path: Path) -> None:
    ours, theirs = (
        subprocess.Popen([sys.executable, "-c", _WAITING, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("session/logs", "other")
    )
    try:
        for process in (ours, theirs):
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
        end_processes(str(tmp_path / "session"))
        assert ours.wait(timeout=10) == -9
        assert theirs.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.communicate()


def test_where_there_are_no_processes_to_be_seen_nothing_happens(tmp_path: Path) -> None:
    end_processes(str(tmp_path), processes=tmp_path / "nowhere")
