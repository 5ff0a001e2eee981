"""A Ray cluster of one machine, for `outrider run` and for tests: its own folder and ports, gone when it is closed."""

import errno
import logging
import os
import random
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import ray
from ray import serve

from deployments.messages.errors import ConfigError, OutriderError
from serve_app.app import build
from serve_app.config import AppConfig
from serve_app.leftovers import end_processes

APP = "outrider"

_QUIET_PORTS = range(20_000, 32_768)
_ERRORS = "deployments.messages.errors."

# A line per request and per control message would bury what the replicas have to say.
_SERVE_LOGGING = {"enable_access_log": False, "log_level": "WARNING"}
_RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    # The cluster is this machine's own: nothing is reported anywhere, nothing shares another cluster's files.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A first start compiles for a minute or two and says how far it is.
    "RAY_SERVE_SLOW_STARTUP_WARNING_S": "600",
    # A reply is many small messages; these keep each of them in one thread per process, and off the object store.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    # Ray starts its workers at niceness 15; a replica is the service itself, not work in the background.
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running application.

    Attributes:
        url: where it answers, without a path.
        model: the id to name in requests.
        logs: a folder with everything the replicas print; gone with the service.
    """

    url: str
    model: str
    logs: Path


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Ray and Serve on this machine, with nothing served yet.

    Attributes:
        url: where the applications will answer.
    """

    url: str
    logs: Path

    @contextmanager
    def runs(self, config: AppConfig, /) -> Iterator[Service]:
        """Runs the application until the block ends; then another one may.

        Raises:
            ConfigError: the configuration cannot work.
            OutriderError: the application did not start; the sentence says why.
        """
        try:
            try:
                serve.run(build(config), name=APP, route_prefix="/", logging_config=_SERVE_LOGGING)
            except RuntimeError as error:
                raise OutriderError(f"the application did not start: {_reason(error)}") from error
            yield Service(url=self.url, model=_served_model(self.url, keys=config.api_keys()), logs=self.logs)
        finally:
            # Not `serve.shutdown`: it waits for the controller to be killed, which Ray then reports as a failure.
            serve.delete(APP)


@contextmanager
def serving(config: AppConfig, *, host: str = "127.0.0.1", port: int = 8000, quiet: bool = False) -> Iterator[Service]:
    """Runs the application on a cluster of its own until the block ends; for parameters and errors see both."""
    with cluster(host=host, port=port, quiet=quiet) as machine, machine.runs(config) as service:
        yield service


@contextmanager
def cluster(*, host: str = "127.0.0.1", port: int = 0, quiet: bool = False) -> Iterator[Cluster]:
    """Runs Ray and Serve until the block ends; a process can have one at a time.

    Args:
        port: 0 takes a free one.
        quiet: keep the replicas' output out of this process's.

    Raises:
        ConfigError: the port is taken.
        OutriderError: Ray did not start.
    """
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True) as folder:
        try:
            taken = _start(folder, host=host, port=port, quiet=quiet)
            yield Cluster(url=f"http://{_reachable(host)}:{taken}", logs=Path(folder) / "session_latest" / "logs")
        finally:
            ray.shutdown()


def _start(folder: str, *, host: str, port: int, quiet: bool) -> int:
    """Starts Ray and Serve's proxy, and says on which port; a port of our own choice may be lost to a neighbour."""
    for last in (False, False, True):
        chosen = port or free_port(host)
        require_free(host, port=chosen)
        _start_ray(folder, quiet=quiet)
        options = {"host": host, "port": chosen}
        try:
            serve.start(http_options=options, proxy_location="HeadOnly", logging_config=_SERVE_LOGGING)
        except RuntimeError as error:
            if "Failed to bind" not in str(error):
                raise
            if port or last:
                raise ConfigError(f"port {chosen} on {host} was taken while Serve started; try again") from error
            ray.shutdown()
        else:
            return chosen
    raise AssertionError("the last attempt returns or raises")


def _start_ray(folder: str, *, quiet: bool) -> None:
    """Tries again where Ray gave up: on a busy machine its own parts do not find each other in the time it gives them.

    Raises:
        OutriderError: it gave up every time.
    """
    for last in (False, False, True):
        with _undisturbed():
            try:
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=not quiet,
                    logging_level=logging.ERROR,
                    _temp_dir=folder,
                    _node_ip_address="127.0.0.1",
                )
            except Exception as error:  # of no particular type: Ray raises bare ones
                ray.shutdown()
                end_processes(folder)
                if last:
                    reason = str(error).strip().splitlines() or [type(error).__name__]
                    raise OutriderError(f"Ray did not start on this machine: {reason[0]}") from error
            else:
                return


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block is done: Ray, interrupted while it starts processes, leaves some of them behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda *seen: held.append(seen))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held and callable(handler):
            handler(*held[0])


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now. Raises `ConfigError` when the host is not one of this machine's.

    It lies between the ports of Ray's workers and those the system gives to outgoing connections, because the many
    processes that Ray starts next open both kinds and would take one of theirs before Serve listens on it.
    """
    candidates = random.SystemRandom().sample(_QUIET_PORTS, 64)
    for port in (*candidates, 0):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if port and error.errno == errno.EADDRINUSE:
                    continue
                raise ConfigError(f"{host} cannot be listened on ({error.strerror}); choose another --host") from error
            number: int = probe.getsockname()[1]
            return number
    raise AssertionError("the system always has a port")


def require_free(host: str, *, port: int) -> None:
    """Raises `ConfigError` when somebody listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another --port or --host"
            ) from error


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _served_model(url: str, *, keys: tuple[str, ...]) -> str:
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=60.0)
    if not answer.is_success:
        raise OutriderError(f"the application started but does not say what it serves: {answer.text[:200]}")
    model: str = answer.json()["data"][0]["id"]
    return model


def _reason(error: RuntimeError) -> str:
    """Serve keeps the traceback of the replica that failed; the last line of it is the sentence."""
    application = serve.status().applications.get(APP)
    states = application.deployments.values() if application else ()
    failed = [state.message for state in states if state.status == "DEPLOY_FAILED"]
    lines = [line.strip() for line in "\n".join([str(error), *failed]).splitlines() if line.strip()]
    named = [line for line in lines if _ERRORS in line or "Error:" in line]
    chosen = (named or lines)[-1]
    return chosen.rpartition(_ERRORS)[2].partition(": ")[2] if _ERRORS in chosen else chosen
