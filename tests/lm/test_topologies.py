"""Devices that are not here are found by name, and what libtpu is told does not outlast the question."""

import os

import pytest

from deployments.lm.topologies import absent_devices, first_line
from deployments.messages.errors import ConfigError


@pytest.mark.parametrize(("topology", "count"), [("v5e:1x1x1", 1), ("v5p:2x2x1", 4), ("v6e:2x4x1", 8)])
def test_devices_of_a_topology(topology: str, count: int) -> None:
    before = dict(os.environ)
    devices = absent_devices(topology)

    assert len(devices) == count
    assert {device.platform for device in devices} == {"tpu"}
    assert dict(os.environ) == before


@pytest.mark.parametrize("topology", ["v4711:1x1x1", "v6e:3x3x3"])
def test_a_topology_that_is_none_is_refused(topology: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot compile for {topology}: .*name a topology it knows"):
        absent_devices(topology)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("INTERNAL: no such thing.\nand more\nlines"), "INTERNAL: no such thing"),
        (ValueError(), "ValueError"),
        (ValueError("  \n "), "ValueError"),
    ],
)
def test_the_first_line_of_an_error(error: Exception, line: str) -> None:
    assert first_line(error) == line
