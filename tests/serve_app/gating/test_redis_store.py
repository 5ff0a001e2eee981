"""What only a Redis does: passwords, ACLs, certificates, other people's data, messages that never arrive."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from serve_app.gating.encoding import MOST_BYTES
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.records import Target
from serve_app.gating.redis_link import RedisAddress, TlsFiles
from serve_app.gating.redis_store import RedisStore
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStore, GateStoreError, StoreState
from tests.serve_app.gating.benches import HASH, Heard, RedisBench, counted, eventually, opened
from tests.serve_app.gating.certificates import make_authority, make_certificate
from tests.serve_app.gating.making import exactness, forced, key, profit
from tests.serve_app.gating.redis_server import RedisServer

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "gates.md"


@contextmanager
def running(folder: Path, *options: str, tls: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(folder, options=options, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def refused(store: GateStore, /) -> str:
    """The trouble of a store that lets nobody in; readers go on, writers are told."""
    assert store.load() == Snapshot()
    assert store.status().state is StoreState.UNREACHABLE
    with pytest.raises(GateStoreError, match=r"^the gates in .* cannot be (read|written): .") as told:
        store.put(exactness())
    assert "swordfish" not in str(told.value)
    return store.status().detail


def test_a_password_from_anywhere(tmp_path: Path) -> None:
    with running(tmp_path, "--requirepass", "sword fish/1") as server:
        (tmp_path / "password").write_text("sword fish/1\n")
        in_url = server.url.replace("redis://", "redis://:sword%20fish%2F1@")
        open_store(StoreSettings(url=in_url)).put(exactness())
        for settings in (
            StoreSettings(url=server.url, password="sword fish/1"),
            StoreSettings(url=server.url, password_file=str(tmp_path / "password")),
            StoreSettings(url=in_url.replace("sword", "wrong"), password="sword fish/1"),
        ):
            assert open_store(settings).load() == Snapshot.of([exactness()], revision=1)
            assert "fish" not in repr(settings)


def test_a_wrong_password_or_none_is_said_and_fails_no_reader(tmp_path: Path) -> None:
    with running(tmp_path, "--requirepass", "right") as server:
        assert "refused the user or the password" in refused(
            open_store(StoreSettings(url=server.url, password="swordfish"))
        )
        assert "refused the user or the password" in refused(open_store(StoreSettings(url=server.url)))
        late = open_store(StoreSettings(url=server.url, password_file=str(tmp_path / "late")))
        assert "the password file cannot be read" in refused(late)
        (tmp_path / "late").write_text("right")
        late.put(exactness())
        assert late.status().state is StoreState.CURRENT
    with running(tmp_path) as server:
        assert "refused the user or the password" in refused(
            open_store(StoreSettings(url=server.url, password="swordfish"))
        )


def test_a_changed_password_is_taken_up(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("old")
    with running(tmp_path, "--requirepass", "old") as server:
        store = open_store(StoreSettings(url=server.url, password_file=str(password)))
        store.put(exactness())
        store.watch(Heard())
        with redis.Redis(port=server.port, password="old", protocol=2) as operator:
            operator.config_set("requirepass", "new")
            operator.client_kill_filter(_type="normal", skipme=True)
            operator.client_kill_filter(_type="pubsub")
        eventually(counted(store, state=StoreState.UNREACHABLE))
        password.write_text("new")
        eventually(counted(store, state=StoreState.CURRENT))
        store.close()
        assert store.snapshot == Snapshot.of([exactness()], revision=1)


def acl_rule() -> list[str]:
    """The rule that the documentation gives, for a user of this test."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("user outrider "))
    return line.replace(">PASSWORD", ">swordfish").split()[2:]


def test_the_documented_acl_rule_is_enough_and_no_more(redis_bench: RedisBench) -> None:
    with redis_bench.client as operator:
        operator.execute_command("ACL", "SETUSER", "outrider", *acl_rule())
    url = redis_bench.url.replace("redis://", "redis://outrider@")
    store, heard = open_store(StoreSettings(url=url, password="swordfish")), Heard()
    store.watch(heard)
    store.put(exactness())
    store.force(forced())
    assert store.unforce(Target())
    assert store.remove(exactness().id)
    assert store.export()
    eventually(counted(store, state=StoreState.CURRENT, revision=4))
    store.close()
    foreign = open_store(StoreSettings(url=url, password="swordfish", name="others"))
    assert "may not do this" in refused(foreign)


def test_tls_is_checked(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, name="ours")
    certificate, private = make_certificate(tmp_path, authority=authority, address="127.0.0.1")
    other = make_authority(tmp_path, name="other")
    options = ("--tls-cert-file", certificate, "--tls-key-file", private, "--tls-ca-cert-file", authority.certificate)
    with running(tmp_path, *options, "--tls-auth-clients", "optional", tls=True) as server:
        url = server.url.replace("redis://", "rediss://")
        store, heard = open_store(StoreSettings(url=url, tls=TlsFiles(ca_file=authority.certificate))), Heard()
        store.watch(heard)
        store.put(exactness())
        eventually(heard.has(1))
        store.close()
        assert "certificate verify failed" in refused(
            open_store(StoreSettings(url=url, tls=TlsFiles(ca_file=other.certificate)))
        )
        assert "certificate verify failed" in refused(open_store(StoreSettings(url=url)))
        by_name = url.replace("127.0.0.1", "localhost")
        assert "Hostname mismatch" in refused(
            open_store(StoreSettings(url=by_name, tls=TlsFiles(ca_file=authority.certificate)))
        )
        assert refused(open_store(StoreSettings(url=server.url)))


def test_a_server_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, name="ours")
    certificate, private = make_certificate(tmp_path, authority=authority, address="127.0.0.1")
    options = ("--tls-cert-file", certificate, "--tls-key-file", private, "--tls-ca-cert-file", authority.certificate)
    with running(tmp_path, *options, tls=True) as server:
        url = server.url.replace("redis://", "rediss://")
        assert refused(open_store(StoreSettings(url=url, tls=TlsFiles(ca_file=authority.certificate))))
        tls = TlsFiles(ca_file=authority.certificate, cert_file=certificate, key_file=private)
        store = open_store(StoreSettings(url=url, tls=tls))
        store.put(exactness())
        assert store.load() == Snapshot.of([exactness()], revision=1)


def test_something_that_is_no_redis_is_refused() -> None:
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"*-7\r\n", b"$abc\r\n", b"+OK\r\n"):
        with impostor(answer) as url:
            assert refused(open_store(StoreSettings(url=url)))


@contextmanager
def impostor(answer: bytes) -> Iterator[str]:
    """Accepts connections, says one thing to whatever comes, and closes them."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_rediss_to_a_server_without_tls_is_unreachable(redis_bench: RedisBench) -> None:
    store = open_store(StoreSettings(url=redis_bench.url.replace("redis://", "rediss://")))
    assert store.load() == Snapshot()
    assert store.status().state is StoreState.UNREACHABLE


def test_a_message_that_never_came_is_made_up_for(redis_bench: RedisBench) -> None:
    address = RedisAddress.parsed(redis_bench.url)
    store, heard = RedisStore(address, look_s=0.3), Heard()
    opened(redis_bench).put(exactness())
    store.watch(heard)
    eventually(heard.has(1))
    with redis_bench.client as client:
        value = client.hget(HASH, f"exactness:{exactness().id}")
        assert isinstance(value, bytes)
        client.delete(HASH)
        client.hset(HASH, mapping={f"exactness:{exactness().id}": value, "revision": 9})
    eventually(counted(store, revision=9))
    store.close()


def test_a_server_that_comes_back_empty_takes_nothing_away(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        store = open_store(StoreSettings(url=server.url))
        store.put(exactness())
        store.watch(Heard())
        server.stop()
        eventually(counted(store, state=StoreState.UNREACHABLE))
        server.start()
        eventually(counted(store, state=StoreState.MISSING))
        assert store.snapshot == Snapshot.of([exactness()], revision=1)
        store.put(profit())
        eventually(counted(store, state=StoreState.CURRENT))
        store.close()
        assert store.snapshot == Snapshot.of([profit()], revision=1)


def test_a_restart_with_writers_at_work(redis_bench: RedisBench) -> None:
    """Each write either arrives or is refused with an error, and a watcher has what arrived."""
    store, writer = opened(redis_bench), opened(redis_bench)
    store.watch(Heard())
    written = set()
    for number in range(1, 31):
        if number == 10:
            redis_bench.cut_off()
        if number == 20:
            redis_bench.bring_back()
        try:
            writer.put(exactness(key(slots=number)))
            written.add(number)
        except GateStoreError:
            assert number >= 10
    assert {*range(1, 10), *range(21, 31)} <= written
    assert written.isdisjoint(range(10, 20))
    eventually(lambda: {record.key.slots for record in store.snapshot.exactness} == written)
    store.close()


def test_what_others_put_there_is_refused(redis_bench: RedisBench) -> None:
    store = opened(redis_bench)
    store.put(exactness())
    good = store.snapshot
    wrong = {
        "unknown": (b"x", "is none of"),
        "profit:0123456789abcdef": (b"{", "profit:0123456789abcdef"),
        "forced:0123456789abcdef": (b"\xff\xfe", "forced:0123456789abcdef"),
        "exactness:0123456789abcdef": (b"null", "Expected `object`"),
        "revision": (b"-3", "is no number"),
        "forced:": (b"[" * 100_000, "forced:"),
        "exactness:": (b"x" * (MOST_BYTES + 1), "too many"),
    }
    with redis_bench.client as client:
        old = client.hget(HASH, f"exactness:{exactness().id}")
        assert isinstance(old, bytes)
        wrong["exactness:1123456789abcdef"] = (old, "delete it")
        for number, (field, (value, told)) in enumerate(wrong.items(), start=1):
            client.hset(HASH, field, value)
            assert store.load() == good
            assert store.status().state is StoreState.UNREADABLE
            assert told in store.status().detail
            assert store.status().parse_errors == number
            if field == "revision":
                client.hset(HASH, field, "1")
            else:
                client.hdel(HASH, field)
            assert store.load() == good
        client.delete(HASH)
        client.lpush(HASH, "a list")
    assert store.load() == good
    assert "WRONGTYPE" in store.status().detail


def test_stores_with_other_names_share_nothing(redis_bench: RedisBench) -> None:
    opened(redis_bench).put(exactness())
    other = open_store(StoreSettings(url=redis_bench.url, name="staging"))
    assert other.load() == Snapshot()


def test_a_replica_cannot_be_written(redis_bench: RedisBench) -> None:
    with redis_bench.client as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        client.config_set("replica-serve-stale-data", "yes")
    with pytest.raises(GateStoreError, match=r"give the address of the primary"):
        opened(redis_bench).put(exactness())


def test_closing_does_not_wait_for_a_server_that_is_away(redis_bench: RedisBench) -> None:
    store = opened(redis_bench)
    redis_bench.cut_off()
    store.watch(Heard())
    eventually(counted(store, state=StoreState.UNREACHABLE))
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 2
