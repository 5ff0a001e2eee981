"""Hashes of whole files: every byte counts, and nothing is read twice that did not change."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from serve_app.gating.file_hashes import FileHashes

_YOUNG_S = 0.1
DATA = bytes(range(256)) * 64


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A file that the clock has moved on from."""
    path = tmp_path / "model"
    path.write_bytes(DATA)
    time.sleep(_YOUNG_S + 0.05)
    return path


def entries(folder: Path) -> list[Path]:
    return list(folder.glob("*.json")) if folder.is_dir() else []


def test_it_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(DATA)
    assert FileHashes(tmp_path / "kept").of(path) == hashlib.sha256(DATA).hexdigest()
    assert not entries(tmp_path / "kept"), "a file so young may change again without looking it"


def test_what_did_not_change_is_not_read_again(tmp_path: Path, old_file: Path) -> None:
    hashes = FileHashes(tmp_path / "kept", young_s=_YOUNG_S)
    whole = hashes.of(old_file)
    (entry,) = entries(tmp_path / "kept")
    entry.write_bytes(entry.read_bytes().replace(whole.encode(), b"0" * 64))
    assert hashes.of(old_file) == "0" * 64
    (tmp_path / "link").symlink_to(old_file)
    assert hashes.of(tmp_path / "link") == "0" * 64

    with old_file.open("r+b") as file:
        file.seek(5000)
        file.write(b"!")
    status = old_file.stat()
    os.utime(old_file, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))
    assert hashes.of(old_file) == hashlib.sha256(old_file.read_bytes()).hexdigest() != whole


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"seen":1}'])
def test_an_entry_that_is_damaged_costs_time_alone(tmp_path: Path, old_file: Path, content: bytes) -> None:
    hashes = FileHashes(tmp_path / "kept", young_s=_YOUNG_S)
    whole = hashes.of(old_file)
    (entry,) = entries(tmp_path / "kept")
    entry.write_bytes(content)
    assert hashes.of(old_file) == whole


def test_a_folder_that_cannot_be_used_costs_time_alone(old_file: Path) -> None:
    assert FileHashes(old_file / "kept", young_s=_YOUNG_S).of(old_file) == hashlib.sha256(DATA).hexdigest()


def test_all_files_count_in_their_order_and_not_by_name(tmp_path: Path) -> None:
    hashes = FileHashes(tmp_path / "kept", young_s=_YOUNG_S)
    paths = [tmp_path / name for name in "abc"]
    for path, data in zip(paths, (b"1", b"2", b"1"), strict=True):
        path.write_bytes(data)
    assert hashes.of_all(paths[:2]) == hashes.of_all([paths[2], paths[1]])
    assert len({hashes.of_all(some) for some in (paths[:2], paths[1:], paths, paths[:1], [])}) == 5


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        FileHashes(tmp_path / "kept", young_s=_YOUNG_S).of(tmp_path / "none")


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(DATA)
    sha256 = hashlib.sha256

    def changing(data: bytes = b"") -> "hashlib._Hash":
        if not data:
            path.write_bytes(DATA + b"more")
        return sha256(data)

    monkeypatch.setattr("serve_app.gating.file_hashes.hashlib.sha256", changing)
    with pytest.raises(OSError, match="changed while it was being read"):
        FileHashes(tmp_path / "kept", young_s=_YOUNG_S).of(path)
