"""Gates in a YAML file. A ConfigMap mount is one that cannot be written, and changes by the swap of a symlink.

Watched by its status, not its events: those do not arrive from network file systems, nor through symlinks.
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from serve_app.gating.encoding import MOST_BYTES, GatesUnreadable, decode_gates, encode_gates
from serve_app.gating.last_known import LastKnown
from serve_app.gating.records import Forced, Record, Target
from serve_app.gating.replacing import locked, replace_file
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStoreError, OnChange, StoreStatus
from serve_app.gating.watching import Watching

POLL_S = 0.5
_LOCK_S = 10.0
# Between an editor's emptying a file, or taking it away, and its filling it.
_MIDDLE_S, _ATTEMPTS = 0.05, 10
# A file changed again within a tick of the file system's clock may look the same.
_UNSETTLED_NS = 2_000_000_000


class _Mark(NamedTuple):
    """What of a file's status changes when its contents do."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class FileStore:
    """A `file:` store; see `store.GateStore`.

    Args:
        poll_s: seconds between looks at the file.
        lock_s: the longest a writer waits for another.
    """

    def __init__(self, path: Path, /, *, poll_s: float = POLL_S, lock_s: float = _LOCK_S) -> None:
        self._path = path
        self._known = LastKnown(f"file:{path}")
        self._poll_s = poll_s
        self._lock_s = lock_s
        # Reentrant: who is told of a change may look at the store.
        self._reading = threading.RLock()
        self._mark: _Mark | None = None
        self._read_ns = 0
        self._watching: Watching | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._known.snapshot

    def status(self) -> StoreStatus:
        return self._known.status()

    def load(self) -> Snapshot:
        with self._reading:
            self._read_ns = time.time_ns()
            try:
                self._look()
            except FileNotFoundError:
                self._mark = None
                self._known.find_nothing()
            except OSError as error:
                self._mark = None
                self._known.find_unreachable(_told(error))
            return self.snapshot

    def put(self, record: Record, /) -> None:
        self._write(lambda gates, revision: gates.with_record(record, revision=revision))

    def force(self, forced: Forced, /) -> None:
        self._write(lambda gates, revision: gates.with_record(forced, revision=revision))

    def unforce(self, target: Target, /) -> bool:
        return self.remove(Forced.id_for(target))

    def remove(self, record: str, /) -> bool:
        return self._write(lambda gates, revision: gates.without(record, revision=revision))

    def export(self) -> str:
        return encode_gates(self._for_writing())

    def watch(self, on_change: OnChange, /) -> None:
        self._known.watch(on_change)
        self._watching = Watching(self._keep_looking, name=self._known.name)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.stop()

    def _keep_looking(self, over: threading.Event) -> None:
        self.load()
        while not over.wait(self._poll_s):
            if self._may_have_changed():
                self.load()

    def _may_have_changed(self) -> bool:
        try:
            mark = _mark_of(self._path.stat())
        except OSError:
            mark = None
        if mark is None or mark != self._mark:
            return True
        return self._read_ns - max(mark.modified_ns, mark.changed_ns) < _UNSETTLED_NS

    def _look(self) -> None:
        """Reads the file; once found in the middle of a write, again. Raises `OSError`."""
        for attempt in range(_ATTEMPTS):
            self._mark, data = _read(self._path)
            try:
                gates = decode_gates(data)
            except GatesUnreadable as error:
                time.sleep(_MIDDLE_S)
                if attempt == _ATTEMPTS - 1 or _mark_of(self._path.stat()) == self._mark:
                    self._known.find_unreadable(str(error), content=data)
                    return
            else:
                self._known.accept(gates)
                return

    def _write(self, edit: Callable[[Snapshot, int], Snapshot], /) -> bool:
        """Whether anything but the revision changed; nothing is written where not."""
        path = self._writable()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path, patience_s=self._lock_s):
                gates = self._for_writing()
                edited = edit(gates, max(gates.revision, self.snapshot.revision) + 1)
                if edited.records == gates.records:
                    return False
                replace_file(path, data=encode_gates(edited).encode())
        except TimeoutError as error:
            raise GateStoreError(
                f"another process has been writing {self._path} for {self._lock_s:g} s; try again when it is done"
            ) from error
        except OSError as error:
            raise GateStoreError(
                f"the gates in {self._path} cannot be written ({_told(error)}); where it is mounted read-only, change "
                "what it is mounted from, with the output of `outrider gate export`"
            ) from error
        self.load()
        return True

    def _writable(self) -> Path:
        """The file itself, behind symlinks, so that they stay."""
        path = Path(os.path.realpath(self._path))
        parents = (*self._path.absolute().parents[:2], *path.parents[:2])
        if any((folder / "..data").is_symlink() for folder in parents):
            raise GateStoreError(
                f"{self._path} is mounted from a ConfigMap or Secret, which overwrites it; change that instead, with "
                "the output of `outrider gate export`"
            )
        return path

    def _for_writing(self) -> Snapshot:
        """What the file holds now, or nothing if it is not there or empty."""
        try:
            _, data = _read(self._path)
            return decode_gates(data) if data.strip() else Snapshot()
        except FileNotFoundError:
            return Snapshot()
        except GatesUnreadable as error:
            raise GateStoreError(
                f"{self._path} cannot be read ({error}), and writing it would lose what it holds; mend or move it first"
            ) from error
        except OSError as error:
            raise GateStoreError(f"{self._path} cannot be read ({_told(error)})") from error


def _read(path: Path) -> tuple[_Mark, bytes]:
    """What is there, now or in a moment. Raises `OSError`."""
    try:
        return _read_now(path)
    except FileNotFoundError:
        # Kubelet takes the old folder away once its link is swapped, and editors the file before its successor comes.
        time.sleep(_MIDDLE_S)
        return _read_now(path)


def _read_now(path: Path) -> tuple[_Mark, bytes]:
    # A pipe in place of the file must not hold up whoever opens it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        return _mark_of(status), file.read(MOST_BYTES + 1)


def _mark_of(status: os.stat_result) -> _Mark:
    return _Mark(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _told(error: OSError) -> str:
    return error.strerror or str(error)
