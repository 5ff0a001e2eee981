"""What a service says of itself, read from the page it has for operators, over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from deployments.ingress.gates import gates_page
from deployments.messages.errors import ConfigError, OutriderError, Unavailable
from deployments.messages.gates import GateReport, SpeculationRule
from serve_app.gating.keys import ProfitKey
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.policy import Candidate
from serve_app.gating.reporting import described_candidate
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.there import that_service
from tests.serve_app.gating.deployed import gate
from tests.serve_app.gating.making import KEY, exactness, key, profit, profit_key

OPERATOR = ("operator",)


RULE = SpeculationRule(kind="ngram", state="settled", gated=True, reason="passed", sentence="passed on this chip")


def page(*replicas: tuple[str, ProfitKey | None]) -> bytes:
    reports = [
        GateReport(
            schema=1,
            replica=name,
            rule=RULE,
            candidates=()
            if pairing is None
            else (described_candidate(Candidate(kind="ngram", key=pairing), gates=Snapshot()),),
        )
        for name, pairing in replicas
    ]
    return msgspec.json.encode(gates_page(reports))


@contextmanager
def service(body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer operator"
            self.send_response((200 if self.path == "/admin/gates" else 404) if allowed else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_every_part_of_a_service_s_keys_is_known() -> None:
    with service(page(("v#a", profit_key()))) as url:
        (there,) = that_service(f"{url}/", keys=OPERATOR)
    assert there.unknown == ()
    assert there.differences(KEY) == there.differences(profit_key()) == ()
    assert there.differences(key(programs="ce" * 32)) == (f"programs {'ce' * 6} != {'cd' * 6}",)
    assert there.differences(profit_key(k_max=3)) == ("k_max 3 != 7",)
    assert there.differences(profit_key("mtp")) == ("drafter.kind mtp != ngram",)


def test_replicas_that_are_alike_are_one() -> None:
    other = profit_key(program=key(programs="ce" * 32))
    with service(page(("v#a", profit_key()), ("v#b", profit_key()), ("v#c", other), ("v#d", None))) as url:
        assert [there.where for there in that_service(url, keys=OPERATOR)] == ["to v#a", "to v#c"]


@pytest.mark.parametrize(
    ("body", "keys", "kind", "told"),
    [
        (page(("v#a", profit_key())), (), ConfigError, "--admin-keys-file"),
        (page(("v#a", profit_key())), ("someone",), ConfigError, "--admin-keys-file"),
        (page(("v#a", None)), OPERATOR, ConfigError, "asks no gates"),
        (page(), OPERATOR, ConfigError, "asks no gates"),
        (b"<html>", OPERATOR, Unavailable, "not understood"),
        (b'{"data": [{"replica": "a", "candidates": [{"kind": "ngram", "key": {}}]}]}', OPERATOR, Unavailable, "key"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, keys: tuple[str, ...], kind: type[OutriderError], told: str) -> None:
    with service(body) as url, pytest.raises(kind, match=told):
        that_service(url, keys=keys)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nowhere", "http://[", ""])
def test_nobody_there_is_said(url: str) -> None:
    with pytest.raises(Unavailable, match="is the service running"):
        that_service(url, keys=())


def test_the_list_is_held_against_the_service(tmp_path: Any) -> None:
    store = open_store(StoreSettings(url=f"file:{tmp_path / 'gates.yaml'}"))
    store.put(exactness())
    store.put(profit())
    store.put(exactness(key(jax="0.11.0")))
    (tmp_path / "admin").write_text("operator\n")
    with service(page(("v#a", profit_key()))) as url:
        words = ["--service", url, "--admin-keys-file", str(tmp_path / "admin")]
        listed = gate("list", "--store", f"file:{tmp_path / 'gates.yaml'}", *words)
    assert listed.count("applies to v#a") == 2
    assert "does not apply to v#a: jax 0.11.0 != 0.12.0" in listed
    assert "not compared" not in listed
