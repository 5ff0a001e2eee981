"""A model hub on this machine: the parts of its HTTP protocol that the client uses, and ways to misbehave.

Large files are redirected to a second origin, as the real hub does with its content network.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"
LARGE = (".gguf", ".safetensors")

WEIGHTS = b"GGUF" + bytes(range(256)) * 4096
INDEX = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
SHARDED = {
    "README.md": b"# sharded",
    "chat_template.jinja": b"{{ messages }}",
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS[4:9000],
    "model-00002-of-00002.safetensors": WEIGHTS[9000:20_000],
    "model.safetensors.index.json": INDEX,
    "onnx/model.safetensors": b"not this",
    "pytorch_model.bin": b"never this",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
}
WANTED = set(SHARDED) - {"README.md", "onnx/model.safetensors", "pytorch_model.bin"}


def repositories() -> dict[str, dict[str, dict[str, bytes]]]:
    """One of each kind, with an older commit of one."""
    return {
        "lab/one": {COMMIT: {"one.gguf": WEIGHTS, "README.md": b"# one"}, OLDER: {"one.gguf": WEIGHTS[::-1]}},
        "lab/several": {COMMIT: {"several.Q4_1.gguf": WEIGHTS, "sub/several.Q8_0.gguf": WEIGHTS[::-1]}},
        "lab/sharded": {COMMIT: SHARDED},
        "lab/split": {
            COMMIT: {f"s-{n:05}-of-00003.gguf": WEIGHTS[: n * 1000] for n in (1, 2, 3)} | {"mmproj-s.gguf": b"eyes"}
        },
        "lab/pickled": {COMMIT: {"pytorch_model.bin": b"no", "config.json": b"{}"}},
        "lab/none": {COMMIT: {"README.md": b"nothing"}},
        "lab/gated": {COMMIT: {"gated.gguf": WEIGHTS}},
    }


@dataclass(kw_only=True)
class Failure:
    """An answer that takes the place of the right one, `times` times, for requests whose line matches `line`."""

    line: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    hang_s: float = 0.0
    cut_body_at: int | None = None


@dataclass(kw_only=True)
class Hub:
    """What is there, what was asked, and how the server misbehaves.

    Attributes:
        repos: names to the files of each commit.
        refs: branches and tags of every repository.
        served: bytes sent in place of a file's own, by the file's name.
        headers: added to the answer about a file.
        asked: request lines, of both origins.
        authorizations: what the requests of each origin carried.
        ranges: the `Range` headers of requests for file contents.
    """

    repos: dict[str, dict[str, dict[str, bytes]]]
    refs: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    gated: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    token: str = ""
    failures: list[Failure] = field(default_factory=list)
    served: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    lists_sizes: bool = True
    asked: list[str] = field(default_factory=list)
    authorizations: dict[str, set[str | None]] = field(default_factory=lambda: {"hub": set(), "content": set()})
    ranges: list[str] = field(default_factory=list)
    url: str = ""
    content_url: str = ""

    def contents_asked(self) -> list[str]:
        """The requests for the contents of files."""
        return [line for line in self.asked if line.startswith("GET") and "/api/" not in line]

    def failure(self, line: str, /) -> Failure | None:
        """What this request is to be answered with instead."""
        for failure in self.failures:
            if failure.times > 0 and re.search(failure.line, line):
                failure.times -= 1
                return failure
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    origin: str

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.split("?")[0]
        line = f"{self.command} {path}"
        self.hub.asked.append(line)
        self.hub.authorizations[self.origin].add(self.headers.get("Authorization"))
        failure = self.hub.failure(line)
        if failure is not None and failure.hang_s:
            time.sleep(failure.hang_s)
        if failure is not None and failure.status:
            self.send(failure.status, headers=failure.headers)
        elif self.origin == "content":
            self.send_content(path, failure=failure)
        else:
            self.route(path, failure=failure)

    def route(self, path: str, *, failure: Failure | None) -> None:
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = listing or file
        repo = match[1] if match else ""
        revision = (match[2] if match else None) or "main"
        commit = self.hub.refs.get(revision.replace("%2F", "/"), revision)
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self.send(401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo in self.hub.private:
            self.send(401, headers={"X-Error-Code": "RepoNotFound"})
        elif repo not in self.hub.repos:
            self.send(404, headers={"X-Error-Code": "RepoNotFound"})
        elif commit not in self.hub.repos[repo]:
            self.send(404, headers={"X-Error-Code": "RevisionNotFound"})
        elif listing:
            self.send(200, body=self.listing(repo, commit=commit), headers={"Content-Type": "application/json"})
        elif repo in self.hub.gated:
            self.send(403, headers={"X-Error-Code": "GatedRepo"})
        else:
            assert file
            self.send_file(repo, commit=commit, name=file[3], failure=failure)

    def listing(self, repo: str, *, commit: str) -> bytes:
        siblings = []
        for name, content in self.hub.repos[repo][commit].items():
            entry: dict[str, object] = {"rfilename": name}
            if self.hub.lists_sizes:
                entry |= {"size": len(content), "blobId": "0" * 40}
                if name.endswith(LARGE):
                    digest = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode()

    def send_file(self, repo: str, *, commit: str, name: str, failure: Failure | None) -> None:
        files = self.hub.repos[repo][commit]
        headers = {"X-Repo-Commit": commit, **self.hub.headers}
        if name not in files:
            self.send(404, headers={**headers, "X-Error-Code": "EntryNotFound"})
        elif name.endswith(LARGE):
            linked = {
                "X-Linked-Etag": f'"{hashlib.sha256(files[name]).hexdigest()}"',
                "X-Linked-Size": str(len(files[name])),
                "Location": f"{self.hub.content_url}/{repo}/{commit}/{name}?Signature=SIGNED",
            }
            self.send(302, headers=headers | linked)
        else:
            etag = {"ETag": f'"{hashlib.sha1(files[name]).hexdigest()}"'}
            self.send(200, headers=headers | etag, body=self.hub.served.get(name, files[name]), failure=failure)

    def send_content(self, path: str, *, failure: Failure | None) -> None:
        owner, repo, commit, name = path.removeprefix("/").split("/", 3)
        content = self.hub.served.get(name, self.hub.repos[f"{owner}/{repo}"][commit][name])
        asked = self.headers.get("Range")
        if asked is None:
            self.send(200, body=content, failure=failure)
            return
        self.hub.ranges.append(asked)
        begin = int(asked.removeprefix("bytes=").removesuffix("-"))
        span = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        self.send(206, body=content[begin:], headers=span, failure=failure)

    def send(
        self,
        status: int,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        failure: Failure | None = None,
    ) -> None:
        cut = failure.cut_body_at if failure and self.command == "GET" else None
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            # Who has asked may have given up.
            with suppress(ConnectionError):
                self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what matters is in `Hub.asked`."""


@contextmanager
def running(hub: Hub, /) -> Iterator[Hub]:
    """Serves `hub` on two ports until the block ends."""
    with _serving(hub, origin="hub") as hub.url, _serving(hub, origin="content") as hub.content_url:
        yield hub


@contextmanager
def _serving(hub: Hub, *, origin: str) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub, "origin": origin}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
