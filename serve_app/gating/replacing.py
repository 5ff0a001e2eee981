"""One writer at a time, and files that are whole at every moment. Knows no contents."""

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_RETRY_S = 0.02


@contextmanager
def locked(path: Path, /, *, patience_s: float) -> Iterator[None]:
    """Keeps other writers of `path` out: an advisory lock on a file beside it, which stays there.

    The lock of a process that ends ends with it.

    Raises:
        TimeoutError: others had it for so long.
    """
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        until = time.monotonic() + patience_s
        while not _took(descriptor):
            if time.monotonic() > until:
                raise TimeoutError(f"{lock} is taken")
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _took(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_file(path: Path, /, *, data: bytes) -> None:
    """Whoever reads `path` at any moment, a crash included, finds the old contents or the new ones, whole."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
