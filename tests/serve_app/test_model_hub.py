"""The hub client against a server on this machine that speaks the parts of the hub's protocol it uses."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, ConfigError
from serve_app.model_fetch import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = b"GGUF" + bytes(range(256)) * 4096
REPOSITORIES = {
    "lab/one": {"one.gguf": WEIGHTS, "README.md": b"# one"},
    "lab/several": {"several.Q4_1.gguf": WEIGHTS, "sub/several.Q8_0.gguf": WEIGHTS[::-1]},
    "lab/none": {"model.safetensors": b"{}"},
    "lab/gated": {"gated.gguf": WEIGHTS},
}
GATED = "lab/gated"
PRIVATE = "lab/private"


@dataclass(kw_only=True)
class Hub:
    """What the server was asked, and how it should misbehave."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    cut_first_body_at: int | None = None


class Handler(BaseHTTPRequestHandler):
    """`/api/models/{repo}` and `/{repo}/resolve/main/{file}`."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.asked.append(f"{self.command} {path}")
        match = re.fullmatch(r"(/api/models)?/(\w+/\w+)(?:/resolve/main/(.+))?", path)
        api, repo, file = match.groups() if match else (None, "", None)
        if repo == GATED and not api:
            self.send(403, headers={"X-Error-Code": "GatedRepo"}, with_body=with_body)
        elif repo == PRIVATE:
            self.send(401, headers={"X-Error-Code": "RepoNotFound"}, with_body=with_body)
        elif repo not in REPOSITORIES:
            self.send(404, headers={"X-Error-Code": "RepoNotFound"}, with_body=with_body)
        elif api:
            self.send(200, body=model_info(repo), with_body=with_body)
        elif file not in REPOSITORIES[repo]:
            self.send(404, headers={"X-Error-Code": "EntryNotFound"}, with_body=with_body)
        else:
            self.send_file(REPOSITORIES[repo][file], with_body=with_body)

    def send_file(self, content: bytes, *, with_body: bool) -> None:
        etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        cut = self.hub.cut_first_body_at if with_body else None
        if with_body:
            self.hub.cut_first_body_at = None
        self.send(200, headers=etag, body=content, with_body=with_body, cut=cut)

    def send(
        self,
        status: int,
        *,
        with_body: bool,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what matters is in `Hub.asked`."""


def model_info(repo: str) -> bytes:
    siblings = [{"rfilename": name} for name in REPOSITORIES[repo]]
    return json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache. The client reads its settings once, on import, so they are set where it keeps them."""
    from huggingface_hub import constants

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "hub"), raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "hub"


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def quietly(_: str) -> None:
    """A report that nobody reads."""


def test_the_only_gguf_file(hub: Hub, hub_cache: Path) -> None:
    path = resolve_model("lab/one", report=quietly)

    assert path.name == "one.gguf"
    assert path.read_bytes() == WEIGHTS
    assert path.is_relative_to(hub_cache)


def test_second_time_downloads_nothing(hub: Hub) -> None:
    first = resolve_model("lab/one", report=quietly)
    hub.asked.clear()

    assert resolve_model("lab/one", report=quietly) == first
    assert not [line for line in hub.asked if line.startswith("GET /lab/one/resolve")]


def test_one_of_several(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=r"has 2 \.gguf files.*several\.Q4_1\.gguf, sub/several\.Q8_0\.gguf"):
        resolve_model("lab/several", report=quietly)

    assert resolve_model("lab/several:sub/several.Q8_0.gguf", report=quietly).read_bytes() == WEIGHTS[::-1]


def test_broken_connection_is_tried_again(hub: Hub) -> None:
    hub.cut_first_body_at = 100_000

    assert resolve_model("lab/one:one.gguf", report=quietly).read_bytes() == WEIGHTS
    assert sum(line.startswith("GET /lab/one/resolve") for line in hub.asked) == 2


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lab/none", r"lab/none has no \.gguf file"),
        ("lab/one:two.gguf", r"lab/one has no file two\.gguf; it has one\.gguf"),
        ("lab/unknown", "no repository lab/unknown that you may read"),
        ("lab/unknown:x.gguf", "no repository lab/unknown that you may read"),
        ("lab/private", "no repository lab/private that you may read.*HF_TOKEN"),
        ("lab/gated", "lab/gated is gated.*HF_TOKEN"),
    ],
)
def test_one_sentence_says_what_is_wrong(hub: Hub, spec: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        resolve_model(spec, report=quietly)

    assert "\n" not in str(caught.value)


def test_name_the_hub_would_refuse(hub: Hub) -> None:
    with pytest.raises(ConfigError, match="'lab/a--b' is not the name of a hub repository"):
        resolve_model("lab/a--b", report=quietly)


@pytest.mark.parametrize("spec", ["lab/one", "lab/one:one.gguf"])
def test_hub_out_of_reach(hub: Hub, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match=r"cannot fetch lab/one.* from the model hub .*not on this machine"):
        resolve_model(spec, report=quietly)

    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fetched = resolve_model(spec, report=quietly)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    assert resolve_model(spec, report=quietly) == fetched
