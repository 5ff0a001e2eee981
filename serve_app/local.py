"""A Ray cluster of one machine, for `outrider run` and for tests: its own folder and ports, gone when it is closed."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import ray
from ray import serve

from deployments.messages.errors import ConfigError, OutriderError
from serve_app.app import build
from serve_app.config import AppConfig

APP = "outrider"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running application.

    Attributes:
        url: where it answers, without a path.
        model: the id to name in requests.
    """

    url: str
    model: str


@contextmanager
def serving(config: AppConfig, *, host: str = "127.0.0.1", port: int = 8000, quiet: bool = False) -> Iterator[Service]:
    """Runs the application until the block ends.

    Args:
        port: 0 takes a free one.
        quiet: keep the replicas' output out of this process's.

    Raises:
        ConfigError: the port is taken, or the configuration cannot work.
        OutriderError: the application did not start; the sentence says why.
    """
    port = port or free_port(host)
    require_free(host, port=port)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # The cluster is this machine's own: nothing is reported anywhere, nothing shares another cluster's files.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=not quiet,
            logging_level="ERROR",
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        try:
            serve.start(http_options={"host": host, "port": port}, proxy_location="HeadOnly")
            serve.run(build(config), name=APP, route_prefix="/")
            url = f"http://{_reachable(host)}:{port}"
            yield Service(url=url, model=_served_model(url))
        except RuntimeError as error:
            raise OutriderError(f"the application did not start: {_reason(error)}") from error
        finally:
            serve.shutdown()
            ray.shutdown()


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        number: int = probe.getsockname()[1]
    return number


def require_free(host: str, *, port: int) -> None:
    """Raises `ConfigError` when somebody listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port"
            ) from error


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _served_model(url: str) -> str:
    answer = httpx.get(f"{url}/v1/models", timeout=60.0)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return "MODEL"
    model: str = answer.json()["data"][0]["id"]
    return model


def _reason(error: RuntimeError) -> str:
    """Serve wraps a replica's error in its own traceback; the last line of it is the sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "deployments.messages.errors." in line or "Error:" in line]
    chosen = (named or lines or ["unknown"])[-1]
    return chosen.rsplit("deployments.messages.errors.", 1)[-1]
