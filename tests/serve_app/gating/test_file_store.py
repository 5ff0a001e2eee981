"""What a file may do that no other store does: change by hand, by symlink, in place, or not at all."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve_app.gating.encoding import encode_gates
from serve_app.gating.file_store import FileStore
from serve_app.gating.replacing import locked
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStoreError, StoreState
from tests.serve_app.gating.benches import Heard, counted, eventually
from tests.serve_app.gating.making import exactness, forced, key, profit
from tests.serve_app.gating.mounting import mounted, swap

ONE = Snapshot.of([exactness()], revision=1)
TWO = Snapshot.of([exactness(), profit()], revision=2)
NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere; this test wants to be refused."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_configmap_is_followed_through_its_swap(tmp_path: Path) -> None:
    store, heard = FileStore(mounted(tmp_path, text=encode_gates(ONE))), Heard()
    store.watch(heard)
    eventually(heard.has(1))
    began = time.monotonic()
    swap(tmp_path, text=encode_gates(TWO))
    eventually(heard.has(2))
    store.close()
    assert time.monotonic() - began < 2
    assert store.snapshot == TWO


def test_a_file_away_for_a_moment_is_not_missing(tmp_path: Path) -> None:
    """Such a moment is found while links are swapped, and when an editor renames the old file first."""
    path = tmp_path / "gates.yaml"
    store = FileStore(path)
    store.put(exactness())
    for use in (store.load, lambda: store.put(profit())):
        path.rename(tmp_path / "away")
        back = threading.Timer(0.02, (tmp_path / "away").rename, args=(path,))
        back.start()
        use()
        back.join()
    status = store.status()
    assert (status.missing, status.state, store.snapshot) == (0, StoreState.CURRENT, TWO)
    path.unlink()
    assert store.load() == TWO
    assert store.status().missing == 1


def test_a_configmap_is_not_written(tmp_path: Path) -> None:
    path = mounted(tmp_path, text=encode_gates(ONE))
    through = tmp_path / "elsewhere"
    through.mkdir()
    (through / "link.yaml").symlink_to(path)
    for store in (FileStore(path), FileStore(through / "link.yaml")):
        with pytest.raises(GateStoreError, match=r"mounted from a ConfigMap.*outrider gate export"):
            store.put(profit())
    assert FileStore(path).load() == ONE


def test_a_folder_that_cannot_be_written_says_so() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gates.yaml").write_text(encode_gates(ONE))
        folder.chmod(0o555)
        store = FileStore(folder / "gates.yaml")
        with as_nobody(), pytest.raises(GateStoreError, match=r"cannot be written .Permission denied.; .*export"):
            store.put(profit())
        assert store.load() == ONE
        assert [path.name for path in folder.iterdir()] == ["gates.yaml"]
        folder.chmod(0o755)


def test_a_file_that_may_not_be_read_is_unreachable() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "gates.yaml"
        path.write_text(encode_gates(ONE))
        Path(name).chmod(0o755)
        store = FileStore(path)
        store.load()
        path.chmod(0)
        with as_nobody():
            assert store.load() == ONE
        assert (store.status().state, store.status().detail) == (StoreState.UNREACHABLE, "Permission denied")


def test_a_symlink_stays_one_when_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "gates.yaml"
    link.symlink_to("real/gates.yaml")
    FileStore(link).put(exactness())
    assert link.is_symlink()
    assert FileStore(tmp_path / "real" / "gates.yaml").load() == ONE


def test_an_edit_in_place_is_seen_whatever_its_size(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    store, heard = FileStore(path, poll_s=0.05), Heard()
    store.force(forced())
    store.watch(heard)
    eventually(heard.has(1))
    path.write_text(path.read_text().replace("by: alice", "by: carol"))
    eventually(heard.has(2))
    store.close()
    assert store.snapshot.forced[0].by == "carol"


def test_an_edit_that_leaves_size_and_times_is_seen_while_the_clock_may_stand(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    store = FileStore(path)
    store.force(forced())
    status = path.stat()
    with path.open("r+b") as file:
        file.write(path.read_bytes().replace(b"by: alice", b"by: carol"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    heard = Heard()
    store.watch(heard)
    eventually(lambda: store.snapshot.forced[0].by == "carol")
    store.close()


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(encode_gates(ONE))
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    store = FileStore(path, poll_s=0.01)
    store.watch(Heard())
    # Times of a status cannot be set back all: the file is taken for a young one for two seconds.
    time.sleep(2.3)
    loads = store.status().loads
    time.sleep(0.3)
    store.close()
    assert loads > 0
    assert store.status().loads == loads


@pytest.mark.parametrize("content", [b"", b"\n", b"\x00\xff", b"schema: 7\n", b"- 1\n", b"schema: 1\nrevision: -1\n"])
def test_what_holds_no_gates_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gates.yaml"
    path.write_bytes(content)
    store = FileStore(path)
    assert store.load() == Snapshot()
    assert (store.status().state, store.status().parse_errors) == (StoreState.UNREADABLE, 1)
    assert store.status().detail.startswith("line ")


def test_what_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text("schema: 1\nforced: [\n")
    with pytest.raises(GateStoreError, match=r"cannot be read \(line 3, column 1.*would lose what it holds"):
        FileStore(path).put(exactness())
    assert path.read_text() == "schema: 1\nforced: [\n"


def test_an_empty_file_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.touch()
    FileStore(path).put(exactness())
    assert FileStore(path).load() == ONE


def test_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gates.yaml")
    store = FileStore(tmp_path / "gates.yaml")
    assert store.load() == Snapshot()
    assert store.status().detail == "it is not a regular file"


def test_a_path_through_a_file_and_a_loop_of_links_are_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "file" / "gates.yaml", tmp_path / "loop"):
        store = FileStore(path)
        assert store.load() == Snapshot()
        assert store.status().state is StoreState.UNREACHABLE
        with pytest.raises(GateStoreError):
            store.put(exactness())


def test_a_writer_waits_for_another_and_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    with locked(path, patience_s=1):
        with pytest.raises(GateStoreError, match=r"another process has been writing .* for 0.1 s; try again"):
            FileStore(path, lock_s=0.1).put(exactness())
        waiting = threading.Thread(target=FileStore(path).put, args=(exactness(),))
        waiting.start()
        time.sleep(0.1)
        assert not path.exists()
    waiting.join()
    assert FileStore(path).load() == ONE


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    writer, reader = FileStore(path), FileStore(path)
    writer.put(exactness())
    over = threading.Event()

    def write() -> None:
        for number in range(1, 30):
            writer.put(exactness(key(slots=number)))
        over.set()

    writing = threading.Thread(target=write)
    writing.start()
    while not over.is_set():
        reader.load()
    writing.join()
    status = reader.status()
    assert (status.parse_errors, status.missing, status.unreachable) == (0, 0, 0)
    assert status.loads > 10


def test_a_write_keeps_who_may_read(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    store = FileStore(path)
    store.put(exactness())
    path.chmod(0o640)
    store.put(profit())
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == [".gates.yaml.lock", "gates.yaml"]


def test_a_file_half_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    store = FileStore(path, poll_s=0.01)
    store.put(exactness())
    store.watch(Heard())
    text = encode_gates(TWO)
    with path.open("w") as file:
        for begin in range(0, len(text), len(text) // 8):
            file.write(text[begin : begin + len(text) // 8])
            file.flush()
            time.sleep(0.02)
    eventually(counted(store, revision=2))
    store.close()
    assert store.status().parse_errors == 0
