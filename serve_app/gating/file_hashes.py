"""Tells files apart by every byte. Reading gigabytes takes long, so what was read once is remembered.

What is remembered belongs to a path, size, inode and times: whoever changes a byte changes one of them, unless the
clock of the file system stands still, and files that young are not remembered. Knows no formats.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from serve_app.gating.replacing import replace_file

_PIECE = 4 * 2**20
_YOUNG_S = 2.0


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    seen: _Seen
    sha256: str


class FileHashes:
    """SHA-256 of files, remembered in a folder. A folder that cannot be used costs time and nothing else.

    Args:
        folder: one small file for each file that was read; made if need be.
        young_s: seconds since its last change for which a file may change again without looking it.
    """

    def __init__(self, folder: Path, /, *, young_s: float = _YOUNG_S) -> None:
        self._folder = folder
        self._young_ns = int(young_s * 1e9)

    def of_all(self, paths: Sequence[Path], /) -> str:
        """One hash over all files, in their order; not over their names.

        Raises:
            OSError: one cannot be read, or changed while it was.
        """
        digest = hashlib.sha256()
        for path in paths:
            digest.update(bytes.fromhex(self.of(path)))
        return digest.hexdigest()

    def of(self, path: Path, /) -> str:
        """The hash of one file. Raises `OSError` when it cannot be read, or changed while it was."""
        path = Path(os.path.realpath(path))
        seen = _seen(path)
        known = self._remembered(path)
        if known is not None and known.seen == seen:
            return known.sha256
        begun = time.time_ns()
        digest = _digest(path)
        if _seen(path) != seen:
            raise OSError(f"{path} changed while it was being read; start again once it is complete")
        if begun - max(seen.modified_ns, seen.changed_ns) > self._young_ns:
            self._remember(_Entry(seen=seen, sha256=digest))
        return digest

    def _entry(self, path: Path | str) -> Path:
        return self._folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"

    def _remembered(self, path: Path) -> _Entry | None:
        try:
            return msgspec.json.decode(self._entry(path).read_bytes(), type=_Entry)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _remember(self, entry: _Entry) -> None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._entry(entry.seen.path), data=msgspec.json.encode(entry))


def _seen(path: Path) -> _Seen:
    status = path.stat()
    return _Seen(
        path=str(path),
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
