"""Ports of a cluster on this machine; the cluster itself is tested in tests/graph."""

import socket

import pytest

from deployments.messages.errors import ConfigError
from serve_app.local import free_port, require_free


def test_a_free_port_is_none_that_the_system_gives_to_connections_or_ray_to_workers() -> None:
    ports = {free_port() for _ in range(20)}

    assert len(ports) > 1
    assert all(20_000 <= port < 32_768 for port in ports)
    for port in ports:
        require_free("127.0.0.1", port=port)


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 cannot be listened on"):
        free_port("192.0.2.1")


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            require_free("127.0.0.1", port=taken.getsockname()[1])
