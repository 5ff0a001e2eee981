"""Real processes: found by what they are called, halted, and let go."""

import os

import pytest

from serve_app.benchmark.processes import halted, measure_idle, replicas
from tests.serve_app.benchmark.stage import becomes, sleeper


def test_a_replica_is_found_by_its_title_and_goes_on_whatever_happens() -> None:
    with sleeper("ray::ServeReplica:outrider:nightwatch") as drafter, sleeper():
        assert becomes(drafter.pid, "S")
        assert replicas("nightwatch", root=os.getpid()) == (drafter.pid,)
        with pytest.raises(RuntimeError, match="in between"):
            meet_halted(drafter.pid)
        assert becomes(drafter.pid, "S")
        idle = measure_idle(root=os.getpid(), seconds=0.1)
        assert {"nightwatch", "ray"} <= set(idle.percent)
        assert idle.total_percent == sum(idle.percent.values()) >= 0


def test_a_replica_that_ends_while_halted_is_no_error() -> None:
    with sleeper() as drafter, halted([drafter.pid]):
        drafter.kill()
        drafter.wait()


def meet_halted(pid: int) -> None:
    with halted([pid]):
        assert becomes(pid, "T")
        raise RuntimeError("in between")
