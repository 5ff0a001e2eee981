"""The memory plan: what fits, what does not and why, and where the machine says how much there is."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from deployments.verifier.memory import MemoryPlan, check_weights, free_host_memory

MIB = 1024 * 1024


def plan(*, free: int | None, pages: int = 101, temporaries: int = 0) -> MemoryPlan:
    return MemoryPlan(
        weights=100 * MIB, page=MIB, pages=pages, least_pages=11, temporaries=temporaries * MIB, free=free
    )


def test_what_fits_is_not_refused() -> None:
    plan(free=201 * MIB).check()
    plan(free=None, pages=10**9).check()


def test_a_cache_that_is_too_large_is_refused_with_the_number_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(free=171 * MIB, temporaries=10).check()

    assert str(caught.value) == (
        "100.0 MiB of weights, 101.0 MiB of cache (101 pages) and 10.0 MiB for the largest window do not fit the "
        "171.0 MiB that are free; set verifier.cache_pages to at most 60, or lower --slots or --ctx"
    )
    plan(free=171 * MIB, pages=61, temporaries=10).check()


def test_what_cannot_even_hold_one_request_is_refused_otherwise() -> None:
    with pytest.raises(
        ConfigError, match="free; lower --ctx, take a smaller model or --precision int8, or free memory"
    ):
        plan(free=110 * MIB).check()


def test_states_count_and_are_among_what_could_be_less() -> None:
    recurrent = replace(plan(free=200 * MIB), states=20 * MIB)
    assert recurrent.total == plan(free=None).total + 20 * MIB
    with pytest.raises(
        ConfigError, match=r"101\.0 MiB of cache \(101 pages\), 20\.0 MiB of recurrent states do not fit"
    ):
        recurrent.check()
    with pytest.raises(ConfigError, match=r"set verifier\.cache_pages to at most 79"):
        recurrent.check()
    with pytest.raises(ConfigError, match=r"free; lower verifier\.kept_states, --slots or --ctx, take a smaller model"):
        replace(recurrent, free=125 * MIB).check()


def test_weights_alone_are_refused_before_they_are_read() -> None:
    check_weights(3 * 1024 * MIB, free=None)
    check_weights(3 * 1024 * MIB, free=3 * 1024 * MIB)
    with pytest.raises(
        ConfigError, match=r"3\.0 GiB of weights do not fit the 512\.0 MiB that are free; take a smaller"
    ):
        check_weights(3 * 1024 * MIB, free=512 * MIB)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nBuffers: 1 kB\n"}
SECOND = {
    "proc/self/cgroup": "0::/pod/one\n",
    "sys/fs/cgroup/pod/one/memory.max": "max\n",
    "sys/fs/cgroup/pod/one/memory.current": "5\n",
    "sys/fs/cgroup/pod/memory.max": "3000000\n",
    "sys/fs/cgroup/pod/memory.current": "1000000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 500000\nactive_file 7\n",
}
FIRST = {
    "proc/self/cgroup": "4:cpu,memory:/pod\n3:cpuset:/\n0::/\n",
    "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "900000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
    "sys/fs/cgroup/memory/pod/memory.stat": "inactive_file 3\ntotal_inactive_file 100000\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MACHINE, 4_096_000),
        ({**MACHINE, **SECOND}, 2_500_000),
        ({**MACHINE, **FIRST}, 1_200_000),
        (SECOND, 2_500_000),
        ({**MACHINE, "proc/self/cgroup": "0::/gone\n"}, 4_096_000),
        ({**MACHINE, **SECOND, "sys/fs/cgroup/pod/memory.current": "9000000\n"}, 0),
    ],
)
def test_what_is_free_is_the_least_that_anybody_says(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    write(tmp_path, files)

    assert free_host_memory(tmp_path) == free


def test_this_machine_says_something() -> None:
    free = free_host_memory()

    assert free is not None
    assert 16 * MIB < free < 2**50
