"""Hubs that are away, busy, slow or half, and disks that are full: what is fetched all the same, and what is said."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError
from serve_app.model_fetch import resolve_model
from tests.serve_app.hub_server import COMMIT, OLDER, SHARDED, WEIGHTS, Failure, Hub

NOWHERE = "http://127.0.0.1:9"


def quietly(_: str) -> None:
    """A report that nobody reads."""


def fetch(spec: str) -> Path:
    return resolve_model(spec, report=quietly)


@pytest.mark.parametrize("spec", ["lab/one", "lab/one:one.gguf", "lab/sharded", "lab/sharded@" + COMMIT, "lab/split"])
def test_hub_out_of_reach(hub: Hub, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    with pytest.raises(CheckpointError, match=r"cannot fetch lab/.* from the model hub .*not on this machine"):
        fetch(spec)

    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fetched = fetch(spec)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    said: list[str] = []

    assert resolve_model(spec, report=said.append) == fetched
    assert said == [
        f"the model hub is out of reach or refuses; using what is here of {spec.split('@')[0].split(':')[0]} "
        f"(commit {COMMIT[:8]})"
    ]


@pytest.mark.parametrize("spec", ["lab/sharded@" + COMMIT, "lab/split@" + COMMIT])
def test_half_a_checkpoint_is_not_enough(hub: Hub, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    hub.failures.append(Failure(line="^GET .*00002-of", status=404, times=9))
    with pytest.raises(CheckpointError):
        fetch(spec)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)

    with pytest.raises(CheckpointError, match=r"only a part of") as caught:
        fetch(spec)
    assert "00002-of" in str(caught.value)


def test_what_is_there_serves_when_access_ends(hub: Hub) -> None:
    fetched = fetch("lab/one")
    hub.token = "from now on"

    assert fetch("lab/one") == fetched


def test_a_first_half_leaves_the_older_whole_in_place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch stands for the last commit that was fetched whole."""
    older = fetch("lab/sharded")
    hub.repos["lab/sharded"][OLDER] = {name: content + b" " for name, content in SHARDED.items()}
    hub.refs["main"] = OLDER
    hub.failures.append(Failure(line="^GET .*00002-of", status=404, times=9))
    with pytest.raises(CheckpointError):
        fetch("lab/sharded")
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)

    assert fetch("lab/sharded") == older


def test_busy_hub_is_asked_again(hub: Hub) -> None:
    hub.failures += [
        Failure(line="GET /api/models/lab/one", status=429, headers={"Retry-After": "0"}),
        Failure(line="^GET /lab/one/.*gguf", status=503, headers={"Retry-After": "0"}),
    ]
    said: list[str] = []

    assert resolve_model("lab/one", report=said.append).read_bytes() == WEIGHTS
    assert said[0] == "the model hub is busy; asking again in 0 s"


def test_hub_that_stays_busy(hub: Hub) -> None:
    hub.failures.append(Failure(line="/api/", status=503, headers={"Retry-After": "0"}, times=99))
    with pytest.raises(CheckpointError, match=r"does not serve lab/one now \(status 503\).*try again in 0 s"):
        fetch("lab/one")
    assert len(hub.asked) == 3

    hub.failures[0] = Failure(line="/api/", status=429, headers={"Retry-After": "3600"}, times=99)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="try again in 3600 s"):
        fetch("lab/one")
    assert time.monotonic() - started < 5


def test_no_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))

    with pytest.raises(CheckpointError, match=r"lab/one takes 1\.0 MB and the disk .* has 1\.0 kB left"):
        fetch("lab/one")
    assert hub.contents_asked() == []


def test_mirror_that_passes_on_xet_headers(hub: Hub) -> None:
    """They name a store that a plain mirror does not have."""
    route = f"{hub.url}/api/models/lab/one/xet-read-token/{COMMIT}"
    hub.headers = {"X-Xet-Hash": "a" * 64, "Link": f'<{route}>; rel="xet-auth"'}
    said: list[str] = []

    assert resolve_model("lab/one", report=said.append).read_bytes() == WEIGHTS
    assert "lab/one cannot be fetched over xet; fetching it over plain HTTP" in said


def run_alone(
    spec: str, *, hub: Hub, home: Path, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Resolves `spec` in a process of its own, which reads the client's settings from the environment."""
    program = f"{before}\nfrom serve_app.model_fetch import main\nraise SystemExit(main())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", program, spec],
        env=kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_network_wanted(hub: Hub, tmp_path: Path) -> None:
    refused = run_alone("lab/sharded", hub=hub, home=tmp_path, HF_HUB_OFFLINE="1")
    fetched = run_alone("lab/sharded", hub=hub, home=tmp_path)
    hub.asked.clear()
    again = run_alone("lab/sharded", hub=hub, home=tmp_path, HF_HUB_OFFLINE="1")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "HF_HUB_OFFLINE forbids to fetch it" in refused.stderr
    assert (again.returncode, again.stdout) == (0, fetched.stdout)
    assert Path(fetched.stdout.strip()).is_relative_to(tmp_path)
    assert hub.asked == []


def test_signed_addresses_are_not_printed(hub: Hub, tmp_path: Path) -> None:
    """Whoever has such an address may fetch what it leads to."""
    hub.failures.append(Failure(line=r"^GET /lab/one/.*\.gguf", cut_body_at=120_000))

    done = run_alone("lab/one", hub=hub, home=tmp_path)

    assert done.returncode == 0
    assert f"{hub.content_url}/lab/one/{COMMIT}/one.gguf: peer closed connection" in done.stderr
    assert "SIGNED" not in done.stderr


def test_disk_that_fills_up(hub: Hub, tmp_path: Path) -> None:
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))"

    done = run_alone("lab/one", hub=hub, home=tmp_path, before=limit)

    assert done.returncode == 1
    assert "cannot write lab/one to the hub's cache" in done.stderr
    assert "set HF_HOME" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1000]


@pytest.mark.parametrize("line", ["/api/models", pytest.param("^GET .*gguf", marks=pytest.mark.slow)])
def test_hub_that_hangs(hub: Hub, tmp_path: Path, line: str) -> None:
    hub.failures.append(Failure(line=line, hang_s=8.0, times=99))
    hurried = "import serve_app.model_hub as hub; hub._ASK_TIMEOUT_S = 0.5"

    started = time.monotonic()
    done = run_alone("lab/one", hub=hub, home=tmp_path, before=hurried, HF_HUB_DOWNLOAD_TIMEOUT="1")

    assert done.returncode == 1
    assert "cannot fetch lab/one from the model hub" in done.stderr
    assert time.monotonic() - started < 30
