"""Building the native kernels: once, by several processes at a time, and with one clear sentence where it fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels, sources
from deployments.messages.errors import ConfigError

pytestmark = pytest.mark.usefixtures("native")
_BUILD = """
import sys
from pathlib import Path
from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
print(choose_kernels(Kernels(sys.argv[2]), cache=Path(sys.argv[1])))
"""


def start(cache: Path, wanted: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILD, str(cache), wanted]
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "JAX_PLATFORMS": "cpu"} | environment
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_several_processes_build_one_library_and_later_ones_take_it(tmp_path: Path) -> None:
    for process in [start(tmp_path, "native") for _ in range(2)]:
        out, err = process.communicate(timeout=250)
        assert "NATIVE" in out, err
    (library,) = tmp_path.glob("*.so")

    made = library.stat().st_mtime_ns
    out, err = start(tmp_path, "native").communicate(timeout=100)
    assert "NATIVE" in out, err
    assert library.stat().st_mtime_ns == made

    library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    out, err = start(tmp_path, "native").communicate(timeout=250)
    assert "NATIVE" in out, err


def test_without_a_compiler_xla_serves_and_says_why(tmp_path: Path) -> None:
    out, err = start(tmp_path, "auto", PATH=str(tmp_path)).communicate(timeout=100)
    assert "XLA" in out, err
    assert "install g++" in out


def test_native_without_a_compiler_is_refused(tmp_path: Path) -> None:
    _, err = start(tmp_path, "native", PATH=str(tmp_path)).communicate(timeout=100)
    assert "ConfigError: native kernels cannot be used: there is no C++ compiler" in err


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'fatal error: no space' >&2\nexit 1\n")
    broken.chmod(0o755)
    out, err = start(tmp_path / "cache", "auto", CXX=str(broken)).communicate(timeout=100)
    assert "XLA" in out, err
    assert "fatal error: no space" in out


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("/nowhere/g++ -O1", "there is no /nowhere/g++ -O1, which CXX names"), ("{broken} --sysroot=/", "cannot be used")],
)
def test_a_compiler_that_cannot_run_is_named(tmp_path: Path, compiler: str, said: str) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    named = compiler.format(broken=broken)
    out, err = start(tmp_path / "cache", "auto", CXX=named).communicate(timeout=100)
    assert "XLA" in out, err
    assert said in out


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    out, err = start(file, "auto").communicate(timeout=100)
    assert "XLA" in out, err
    assert f"{file} cannot be written" in out
    _, err = start(file, "native").communicate(timeout=100)
    assert "take kernels 'xla', or 'auto'" in err


@pytest.mark.parametrize("wanted", [Kernels.XLA, Kernels.PALLAS_INTERPRETED])
def test_what_needs_no_library_builds_none(tmp_path: Path, wanted: Kernels) -> None:
    assert choose_kernels(wanted, cache=tmp_path) == (wanted, "asked for")
    assert not any(tmp_path.iterdir())


def test_pallas_kernels_are_refused_where_there_is_no_tpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="they are for TPUs, and this is a cpu; take kernels 'auto'"):
        choose_kernels(Kernels.PALLAS, cache=tmp_path)


@pytest.mark.parametrize("wanted", [Kernels.AUTO, Kernels.PALLAS])
def test_a_tpu_gets_pallas_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Kernels) -> None:
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert choose_kernels(wanted, cache=tmp_path) == (Kernels.PALLAS, "TPU")
    with pytest.raises(ConfigError, match="they are for processors, and this is a tpu"):
        choose_kernels(Kernels.NATIVE, cache=tmp_path)


def test_a_second_folder_in_one_process_is_not_needed(tmp_path: Path) -> None:
    """The fixture has loaded them from another one."""
    assert choose_kernels(Kernels.NATIVE, cache=tmp_path)[0] is Kernels.NATIVE
    assert not any(tmp_path.iterdir())


def test_every_source_is_part_of_the_library() -> None:
    folder = Path(sys.modules[choose_kernels.__module__].__file__ or "").parent
    assert {path for path in folder.rglob("*") if path.suffix in (".cc", ".h")} == set(sources())
