"""Chips of a replica, on a node that only says that it has some: everything but the chips themselves is real."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments.messages.errors import ConfigError
from serve_app.chip_placement import actor_options, check_devices, chip_environment, settle_platform
from serve_app.config import AppConfig

# Two replicas on a host of eight chips, and what each one's process sees before it imports JAX.
_PLACED = """
import json, os, sys, tempfile
import ray
from serve_app.chip_placement import actor_options

class Replica:
    def seen(self):
        assert "jax" not in sys.modules
        return {name: value for name, value in os.environ.items() if name.startswith(("TPU_", "JAX_"))}

with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    ray.init(address="local", num_cpus=2, resources={"TPU": 8}, include_dashboard=False, _temp_dir=folder,
             configure_logging=False)
    try:
        placed = ray.remote(Replica)
        replicas = [placed.options(**actor_options(cpus=0.1, chips=int(chips))).remote() for chips in sys.argv[1:]]
        print(json.dumps(ray.get([replica.seen.remote() for replica in replicas])))
    finally:
        ray.shutdown()
"""


def test_a_process_without_chips_is_left_alone() -> None:
    assert chip_environment(0) == {}
    assert actor_options(cpus=1) == {"num_cpus": 1}


def test_a_number_of_chips_that_no_host_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="3 TPU chips of a host cannot work together; take 1, 2, 4 or 8"):
        chip_environment(3)
    with pytest.raises(ValueError, match="take 1, 2, 4 or 8"):
        AppConfig.model_validate({"verifier": {"tpus": 3}})


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("", {}, {"JAX_PLATFORMS": "cpu"}),
        ("", {"JAX_PLATFORMS": "tpu"}, {"JAX_PLATFORMS": "tpu"}),
        ("accel0", {}, {}),
        ("vfio/0", {}, {}),
        ("vfio/vfio", {}, {"JAX_PLATFORMS": "cpu"}),
    ],
)
def test_chips_are_looked_for_where_there_are_some(
    tmp_path: Path, device: str, before: dict[str, str], after: dict[str, str]
) -> None:
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    settle_platform(before, devices=tmp_path)
    assert before == after


@pytest.mark.serve
def test_each_replica_sees_its_own_chips_and_how_they_are_wired() -> None:
    first, second, third = placed(4, 2, 1)
    assert set(first["TPU_VISIBLE_CHIPS"].split(",")).isdisjoint(second["TPU_VISIBLE_CHIPS"].split(","))
    assert len(first["TPU_VISIBLE_CHIPS"].split(",")) == 4
    for seen, bounds in ((first, "2,2,1"), (second, "1,2,1"), (third, "1,1,1")):
        for name in ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"):
            assert seen[name] == bounds
        assert seen["TPU_PROCESS_BOUNDS"] == seen["TPU_HOST_BOUNDS"] == "1,1,1"
        assert seen["JAX_PLATFORMS"] == "tpu,cpu"


def placed(*chips: int) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_"))} | {
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_NAME": "slice",
        "TPU_WORKER_ID": "0",
        "TPU_TOPOLOGY": "2x4",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    ran = subprocess.run(
        [sys.executable, "-c", _PLACED, *map(str, chips)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_devices_that_a_processor_does_not_have_are_refused_before_anything_starts() -> None:
    cpu = {"JAX_PLATFORMS": "cpu"}
    with pytest.raises(
        ConfigError, match=r"3 devices are to share the model, and this machine has 1, a processor; .*=3"
    ):
        check_devices(cpu, wanted=3)
    several = cpu | {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=4"}
    with pytest.raises(ConfigError, match="this machine has 4"):
        check_devices(several, wanted=8)
    for environment, wanted in ((cpu, 1), (several, 4), ({}, 8), ({"JAX_PLATFORMS": "tpu,cpu"}, 8)):
        check_devices(environment, wanted=wanted)
