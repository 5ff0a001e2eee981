"""A Redis of one's own: Debian's `redis-server`, on a free port, that keeps nothing unless asked to."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

_START_S = 20.0


def redis_binary() -> str:
    """The server, or a skipped test; in CI a failed one."""
    found = shutil.which("redis-server")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("redis-server is not installed; install Debian's package redis-server")
    pytest.skip("redis-server is not installed (Debian's package redis-server)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server process; started again, it has the same port and folder.

    Args:
        options: further ones of its command line.
        port: a free one by default, which others may take while the server is away.
    """

    def __init__(
        self, folder: Path, /, *, options: tuple[str, ...] = (), tls: bool = False, port: int | None = None
    ) -> None:
        self._binary = redis_binary()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.tls = tls
        self.port = port or free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        ports = ("--port", "0", "--tls-port", str(self.port)) if self.tls else ("--port", str(self.port))
        command = [self._binary, *ports, "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=log)
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                pytest.fail(f"redis-server did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGKILL, /) -> None:
        """Ends it; by default at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Keeps its connections, and answers nothing until it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Loses all that it wrote down; to be called while it is stopped."""
        shutil.rmtree(self._folder / "appendonlydir")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
                return True
        except OSError:
            return False
