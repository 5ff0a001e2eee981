"""`outrider run` as a person uses it: in a process group of its own, stopped with Ctrl-C."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve_app.local import free_port

pytestmark = [pytest.mark.serve, pytest.mark.slow]

OUTRIDER = [sys.executable, "-m", "serve_app.cli"]


class Command:
    """A running command and all it has printed."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*OUTRIDER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lambda pipe=pipe, lines=lines: lines.extend(pipe))
            for pipe, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str, *, within_s: float) -> str:
        deadline = time.monotonic() + within_s
        while not (found := [line for line in list(self.out) if text in line]):
            assert self.process.poll() is None, "".join(self.out + self.err)
            assert time.monotonic() < deadline, "".join(self.out + self.err)
            time.sleep(0.1)
        return found[0]

    def press_ctrl_c(self) -> None:
        """As a terminal does: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, *, within_s: float) -> int:
        status = self.process.wait(within_s)
        self.close()
        return status

    def close(self) -> None:
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def command(*arguments: str) -> Iterator[Command]:
    running = Command(*arguments)
    try:
        yield running
    finally:
        family = descendants(running.process.pid)
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        for pid in filter(alive, family):
            os.kill(pid, signal.SIGKILL)
        running.close()


def descendants(root: int) -> set[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        fresh = children.get(waiting.pop(), [])
        found |= set(fresh)
        waiting += fresh
    return found


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def curl_printed(lines: list[str]) -> list[str]:
    (line,) = [line for line in lines if line.strip().startswith("curl ")]
    return shlex.split(line)


def test_it_serves_until_ctrl_c_and_leaves_nothing(golden_llama: Path, tmp_path: Path) -> None:
    port = free_port()
    model = str(golden_llama / "llama.f16.gguf")
    named = ("--served-name", "golden", "--gates", f"file:{tmp_path / 'none.yaml'}")
    with command("run", model, "--port", str(port), "--ctx", "256", *named) as running:
        ready = running.wait_for("ready:", within_s=240)
        assert f"http://127.0.0.1:{port}/v1" in ready
        assert "golden" in ready
        running.wait_for("stop with Ctrl-C", within_s=5)
        answer = subprocess.run(
            curl_printed(running.out), capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert answer.rstrip().endswith("data: [DONE]")
        family = descendants(running.process.pid)
        assert len(family) > 5
        running.press_ctrl_c()
        assert running.ended(within_s=60) == 0
        until_gone(family)
    assert running.out[-2:] == ["stopping\n", "stopped\n"]
    assert not [line for line in running.err if "Traceback" in line]
    starting = [line for line in running.err if '"event": "speculation"' in line]
    assert len(starting) == 1
    assert re.search(r'"used": false, "method": null.*"not_gated".*"--speculation auto;.*gate run', starting[0])
    noise = [line for line in running.out + running.err if "INFO" in line or "WARNING" in line]
    assert not noise, noise
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize("after_s", [1.0, 4.0, 14.0])
def test_ctrl_c_while_it_starts_leaves_nothing(golden_llama: Path, after_s: float) -> None:
    with command("run", str(golden_llama / "llama.f16.gguf"), "--port", "0", "--ctx", "256") as running:
        running.wait_for("starting", within_s=60)
        time.sleep(after_s)
        family = descendants(running.process.pid)
        running.press_ctrl_c()
        running.press_ctrl_c()
        assert running.ended(within_s=90) == 0
        until_gone(family)
    assert not [line for line in running.err if "Traceback" in line], "".join(running.err)


def until_gone(family: set[int]) -> None:
    deadline = time.monotonic() + 20
    while left := {pid for pid in family if alive(pid)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no/such/model.gguf"], "there is no file no/such/model.gguf; check the path"),
        (["nonsense"], "'nonsense' is not a model"),
    ],
)
def test_a_wrong_model_is_one_sentence_and_status_1(arguments: list[str], says: str) -> None:
    done = subprocess.run([*OUTRIDER, "run", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("outrider: ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_one_sentence_and_status_1(golden_llama: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*OUTRIDER, "run", str(golden_llama / "llama.f16.gguf"), "--ctx", "256", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    sentence = rf"outrider: port {port} on 127\.0\.0\.1 cannot be used .*; choose another --port.*\n"
    assert re.fullmatch(sentence, done.stderr)


def test_a_context_the_model_was_not_made_for_is_said_at_once(golden_llama: Path) -> None:
    done = subprocess.run(
        [*OUTRIDER, "run", str(golden_llama / "llama.f16.gguf"), "--port", "0", "--ctx", "4096"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    reason = "a context of 4096 was asked for, but the model was made for 512; lower --ctx"
    assert done.stderr == f"outrider: {reason}\n"
