"""A fingerprint tells files apart by their bytes and sizes, wherever they differ, and does not depend on the name."""

from pathlib import Path

import pytest

from deployments.lm.checkpoint.fingerprint import fingerprint

MIB = 1024 * 1024


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
