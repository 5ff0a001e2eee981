"""The watching thread outlives a defect in what it does."""

import threading

import pytest

from serve_app.gating.watching import Watching


def test_work_that_fails_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    again = threading.Event()

    def work(over: threading.Event) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("a defect")
        again.set()
        over.wait()

    watching = Watching(work, name="here", pause_s=0.01)
    assert again.wait(10)
    watching.stop()
    assert "watching here failed; it begins again" in caplog.text
    assert runs == 2
