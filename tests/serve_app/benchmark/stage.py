"""What the benchmark measures in tests: a real ingress over a scripted verifier, and processes that only sleep."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from deployments.ingress.api import build_api
from deployments.ingress.counters import INGRESS_METRICS
from deployments.ingress.settings import IngressSettings
from serve_app.benchmark.alternation import Effort
from serve_app.local import Service
from tests.ingress.fakes import MODEL, FakeTokenizer, FakeVerifier, RegistryMetrics, Script

TWICE = Effort(rounds=2)
IDS = tuple(range(40, 240))

_LINKS_LIVE = '# TYPE outrider_drafter_links_live gauge\noutrider_drafter_links_live{{replica="v"}} {}\n'


def verifier_with(drafters: int, /, *, script: Script | None = None) -> FakeVerifier:
    """One that says on its metrics page that so many drafters are in use."""
    verifier = FakeVerifier(script=script)
    verifier.pages = [_LINKS_LIVE.format(drafters)]
    return verifier


@contextmanager
def ingress(verifier: FakeVerifier) -> Iterator[Service]:
    """A real ingress in a thread, since the measurements run event loops of their own."""
    api = build_api(
        tokenizer=FakeTokenizer(),
        verifier=verifier,
        drafter=None,
        settings=IngressSettings(),
        metrics=RegistryMetrics(INGRESS_METRICS),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(api, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Service(url=f"http://127.0.0.1:{listener.getsockname()[1]}", model=MODEL, logs=Path())
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def sleeper(title: str = "sleep") -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([title, "60"], executable=shutil.which("sleep")) as process:
        try:
            yield process
        finally:
            process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(pid: int, wanted: str) -> bool:
    deadline = time.monotonic() + 5
    while state(pid) != wanted and time.monotonic() < deadline:
        time.sleep(0.002)
    return state(pid) == wanted
