"""llama.cpp's server as a process of its own, and the ways to start it. Knows nothing of what it is asked."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from deployments.messages.errors import OutriderError
from serve_app.local import free_port

_PATIENCE_S = 120.0
_POLL_S = 0.1
_LAST_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to start the server.

    Attributes:
        threads, batch_threads: for one token at a time, and for more.
        speculation: a name for `options`, which turn it on.
        parallel: requests in a batch.
    """

    threads: int
    batch_threads: int
    speculation: str
    options: tuple[str, ...]
    parallel: int

    @property
    def name(self) -> str:
        return f"{self.speculation}, -t {self.threads} -tb {self.batch_threads}"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What is started: the program, the model, and the tokens each request may have."""

    binary: Path
    model: Path
    context: int

    def command(self, variant: Variant, /, *, port: int) -> tuple[str, ...]:
        """The command line. Nothing of a prompt is kept from one request to the next."""
        threads = ("-t", str(variant.threads), "-tb", str(variant.batch_threads))
        room = ("-np", str(variant.parallel), "-c", str(variant.parallel * self.context))
        return (
            *(str(self.binary), "-m", str(self.model), "--host", "127.0.0.1", "--port", str(port)),
            *(*threads, *room, "--cache-ram", "0", "--no-ui", "--offline"),
            *variant.options,
        )

    def version(self) -> str:
        """What the program says of itself. Raises `OutriderError` when it cannot be run."""
        try:
            said = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise OutriderError(
                f"{self.binary} does not run here ({error}); build it with tests.bench.build_peer"
            ) from error
        return "; ".join(
            line.strip() for line in (said.stdout + said.stderr).splitlines() if line.startswith("version")
        )

    @contextmanager
    def serving(self, variant: Variant, /) -> Iterator[str]:
        """The address of a server that runs until the block ends.

        Raises:
            OutriderError: it ended, or was not ready in two minutes; its last lines follow.
        """
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryFile(mode="w+") as log:
            process = subprocess.Popen(self.command(variant, port=port), stdout=log, stderr=subprocess.STDOUT)
            try:
                _await_ready(url, process=process, log=log, name=variant.name)
                yield url
            finally:
                process.terminate()
                process.wait()


def _await_ready(url: str, *, process: subprocess.Popen[bytes], log: IO[str], name: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            last = "\n".join(log.read().splitlines()[-_LAST_LINES:])
            raise OutriderError(f"llama-server ({name}) did not start:\n{last}")
        time.sleep(_POLL_S)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
