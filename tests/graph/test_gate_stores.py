"""Stores of a running service that fail, change hands and change hands again: no request fails, and all is told.

Two replicas of the verifier watch each store, and every change must reach both.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serve_app.gating.encoding import encode_gates
from serve_app.gating.file_store import FileStore
from serve_app.gating.records import Forced, Setting, Target
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStore
from serve_app.local import free_port
from tests.graph.gating_service import (
    IN_FORCE_S,
    ask,
    gated_config,
    speculates,
    under_load,
)
from tests.graph.stage import Stage, metrics
from tests.graph.watched_store import (
    REPLICAS,
    TROUBLE_S,
    Watched,
    change,
    done,
    force_off,
    gate,
    has_revision,
    is_off,
    is_settled,
    refusal,
)
from tests.serve_app.gating.mounting import mounted, swap
from tests.serve_app.gating.redis_server import RedisServer

pytestmark = pytest.mark.serve

ROOT = Path(__file__).parents[2]
REDIS_S = 0.2
NGRAM = Target(kind="ngram")
OFF = Forced(target=NGRAM, setting=Setting.OFF, by="alice", at=datetime(2026, 11, 29, tzinfo=UTC), why="a test")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that writes every change down; not started yet."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(tmp_path_factory.mktemp("redis"), options=options, port=free_port())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


def served(stage: Stage, model: Path, *, store: str, folder: Path) -> Watched:
    config = gated_config(model, store=store, folder=folder, replicas=REPLICAS)
    return Watched(service=stage.service(config), url=store)


@pytest.fixture
def on_redis(the_stage: Stage, golden_llama: Path, redis: RedisServer, folder: Path) -> Watched:
    """It starts while its Redis is away."""
    return served(the_stage, golden_llama / "llama.f16.gguf", store=redis.url, folder=folder)


@pytest.fixture
def on_file(the_stage: Stage, golden_llama: Path, folder: Path) -> Watched:
    """It starts on a mounted ConfigMap without gates."""
    mount = folder / "mount"
    if not mount.exists():
        mount.mkdir()
        mounted(mount, text=encode_gates(Snapshot()))
    store = f"file:{mount / 'gates.yaml'}"
    return served(the_stage, golden_llama / "llama.f16.gguf", store=store, folder=folder)


@pytest.mark.slow
def test_a_redis_that_comes_late_goes_hangs_and_loses_all(on_redis: Watched, redis: RedisServer) -> None:
    watched = on_redis
    plain = ask(watched.service)
    assert not speculates(plain)
    watched.within(TROUBLE_S, lambda seen: seen["store"]["state"] == "unreachable" and seen["reason"] == "not_gated")
    with under_load(watched.service) as load:
        redis.start()
        watched.found("empty")
        store = watched.store()
        revision = changes_are_in_force(watched, store=store)
        redis_stops_and_comes_back(watched, redis=redis, store=store, revision=revision)
        redis_hangs(watched, redis=redis, revision=revision + 2)
        redis_loses_all(watched, redis=redis, store=store, revision=revision + 2)
        fast = ask(watched.service)
        assert speculates(fast)
    load.check()
    # Tokens and their log-probabilities.
    assert fast["choices"] == plain["choices"]


def changes_are_in_force(watched: Watched, *, store: GateStore) -> int:
    """From the first record to a forced drafter and back; the revision of the last change."""
    exact, paying = watched.records()
    store.put(exact)
    measured = [change(watched, lambda: store.put(paying), revision=2, holds=is_settled)]
    for revision in range(3, 11, 2):
        measured.append(change(watched, lambda: store.force(OFF), revision=revision, holds=is_off))
        undone = change(watched, lambda: store.unforce(NGRAM), revision=revision + 1, holds=is_settled)
        measured.append(undone)
    told = ", ".join(f"{applied * 1e3:.0f} ({seen * 1e3:.0f})" for applied, seen in measured)
    print(f"from before the write to the slower replica, and to the page, under load, in ms: {told}")
    assert min(applied for applied, _ in measured) < REDIS_S
    assert speculates(ask(watched.service))
    return 10


def redis_stops_and_comes_back(watched: Watched, *, redis: RedisServer, store: GateStore, revision: int) -> None:
    redis.stop(signal.SIGTERM)
    seen = watched.found("unreachable")
    assert all(replica["store"]["detail"] for replica in seen)
    page = watched.counts(unreachable=2, missing=0, parse_errors=0)
    assert page.total("gate_store_state", state="unreachable") == REPLICAS
    away_s = page.total("gate_store_unreachable_seconds_total")
    sentence = refusal(force_off(watched.url))
    assert sentence.startswith("outrider: the gates are unreachable: ")
    watched.still_speculates(revision)
    assert metrics(watched.service.url).total("gate_store_unreachable_seconds_total") > away_s + 1
    redis.start()
    seen = watched.found("current")
    assert all(replica["revision"] == revision for replica in seen)
    change(watched, lambda: store.force(OFF), revision=revision + 1, holds=is_off)
    change(watched, lambda: store.unforce(NGRAM), revision=revision + 2, holds=is_settled)


def redis_hangs(watched: Watched, *, redis: RedisServer, revision: int) -> None:
    redis.hang()
    try:
        watched.found("unreachable")
        watched.counts(unreachable=3)
        watched.still_speculates(revision)
    finally:
        redis.go_on()
    watched.found("current")
    watched.still_speculates(revision)


def redis_loses_all(watched: Watched, *, redis: RedisServer, store: GateStore, revision: int) -> None:
    """Coming back empty takes nothing away; what is written then counts, and nothing else."""
    exact, paying = watched.records()
    redis.stop(signal.SIGKILL)
    watched.found("unreachable")
    watched.still_speculates(revision)
    redis.forget()
    redis.start()
    watched.found("missing")
    watched.still_speculates(revision)
    page = watched.counts(unreachable=4, missing=1, parse_errors=0)
    assert page.total("gate_store_state", state="missing") == REPLICAS
    change(watched, lambda: store.put(exact), revision=1, holds=lambda seen: seen["reason"] == "not_gated")
    change(watched, lambda: store.put(paying), revision=2, holds=is_settled)
    watched.found("current")


@pytest.mark.slow
def test_two_writers_of_a_redis_at_once(on_redis: Watched, redis: RedisServer) -> None:
    redis.stop()
    redis.start()
    write_at_once(on_redis, each=150)


def test_a_mounted_configmap_is_swapped(on_file: Watched, folder: Path) -> None:
    watched, mount = on_file, folder / "mount"
    plain = ask(watched.service)
    assert not speculates(plain)
    records = watched.records()
    good = encode_gates(Snapshot.of(records, revision=5))
    with under_load(watched.service) as load:
        measured = [
            change(watched, lambda: swap(mount, text=good), revision=5, holds=is_settled),
            change(
                watched,
                lambda: swap(mount, text=encode_gates(Snapshot.of([*records, OFF], revision=6))),
                revision=6,
                holds=is_off,
            ),
            change(watched, lambda: swap(mount, text=good), revision=5, holds=is_settled),
        ]
        told = ", ".join(f"{applied * 1e3:.0f} ({seen * 1e3:.0f})" for applied, seen in measured)
        print(f"from before the swap to the slower replica, and to the page, under load, in ms: {told}")
        sentence = refusal(force_off(watched.url))
        assert "is mounted from a ConfigMap or Secret" in sentence
        assert "`outrider gate export`" in sentence

        swap(mount, text="schema: 1\nexactness: [\n")
        watched.found("unreadable")
        watched.counts(parse_errors=1, missing=0, unreachable=0)
        watched.still_speculates(5)
        swap(mount, text=good)
        watched.found("current")
        watched.still_speculates(5)
        fast = ask(watched.service)
    load.check()
    watched.counts(parse_errors=1, missing=0, unreachable=0)
    assert fast["choices"] == plain["choices"]


@pytest.mark.slow
def test_two_writers_of_a_file_at_once(on_file: Watched, folder: Path) -> None:
    path = folder / "mount" / "gates.yaml"
    # No ConfigMap any more, but a file that may be written.
    path.unlink()
    (folder / "mount" / "..data").unlink()
    FileStore(path).load()
    write_at_once(on_file, each=25)


def write_at_once(watched: Watched, *, each: int) -> None:
    """Two processes put records while two commands force and take back: each change counts, and none is lost."""
    store = watched.store()
    for record in watched.records():
        store.put(record)
    began = watched.within(IN_FORCE_S, is_settled)[0]["revision"]
    writing = [sys.executable, "-m", "tests.serve_app.gating.writing", watched.url]
    with under_load(watched.service) as load:
        writers = [subprocess.Popen([*writing, str(first), str(each)], cwd=ROOT) for first in (1_001, 2_001)]
        done(force_off(watched.url))
        watched.within(IN_FORCE_S, is_off)
        unforcing = gate("unforce", url=watched.url)
        assert [writer.wait(120) for writer in writers] == [0, 0]
        done(unforcing)
        watched.within(IN_FORCE_S, lambda seen: is_settled(seen) and has_revision(began + 2 * each + 2)(seen))
        assert speculates(ask(watched.service))
    load.check()
    written = {record.key.slots for record in store.load().exactness}
    assert {*range(1_001, 1_001 + each), *range(2_001, 2_001 + each)} <= written
    assert store.snapshot.forced == ()
