"""A fingerprint tells files apart by their bytes and sizes, wherever they differ, and does not depend on the name."""

from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.fingerprint import fingerprint
from deployments.lm.checkpoint.opening import open_checkpoint
from tests.lm.checkpoint.making import write_folder
from tests.lm.checkpoint.test_splits import write_set

MIB = 1024 * 1024
PRINT = "d372f2034a747c9a32a28f3302d45f578b8141f3ca39d64961697933c76ab4c5"


@pytest.mark.parametrize("place", [0, 100, 65_000, MIB, 2 * MIB - 1])
def test_files_that_differ_in_one_byte_differ(tmp_path: Path, place: int) -> None:
    content = bytearray(2 * MIB)
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_bytes(content)
    same.write_bytes(content)
    content[place] = 1
    other.write_bytes(content)

    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_files_that_differ_in_length_alone_differ(tmp_path: Path) -> None:
    names = [tmp_path / str(length) for length in (0, 1, 65_536, 65_537, 3 * MIB)]
    for path in names:
        path.write_bytes(bytes(int(path.name)))

    assert len({fingerprint(path) for path in names}) == 5


def test_all_files_count_and_so_does_their_order(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in "abc")
    for path in (one, two, three):
        path.write_bytes(path.name.encode() * 1000)
    before = fingerprint(one, two, three)
    assert len({before, fingerprint(one, two), fingerprint(one), fingerprint(two, one, three)}) == 4
    three.write_bytes(b"d" * 1000)
    assert fingerprint(one, two, three) != before


def test_folders_and_sets_are_told_apart_by_any_of_their_files(tmp_path: Path) -> None:
    paths = write_set(tmp_path / "set")
    folder = write_folder(tmp_path / "folder", tensors={"t": np.ones(3, np.float32)})
    for given, changed in ((paths[1], paths[2]), (folder, folder / "config.json")):
        before = fingerprint(*open_checkpoint(given).files)
        changed.write_bytes(changed.read_bytes().replace(b"llama", b"other").replace(b"\0\0 B", b"\1\0 B"))
        assert fingerprint(*open_checkpoint(given).files) != before


def test_one_file_has_the_print_that_records_have(tmp_path: Path) -> None:
    """Gate records hold it."""
    path = tmp_path / "a"
    path.write_bytes(b"model" * 100_000)

    assert fingerprint(path) == PRINT
