"""GGUF files, whole and broken: one clear `CheckpointError` for whatever is wrong, never a crash, never much memory."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import CheckpointError

HEADER = b"GGUF" + struct.pack("<I", 3)
HUGE = 2**60


@dataclass(kw_only=True)
class Peak:
    bytes: int = 0


@contextmanager
def peak() -> Iterator[Peak]:
    """The most memory that Python and numpy had allocated at once."""
    found = Peak()
    tracemalloc.start()
    try:
        yield found
    finally:
        found.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes bytes to a file that is named like a model."""

    def write(data: bytes) -> Path:
        path = tmp_path / "broken.gguf"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A little of everything a file may hold."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.epsilon", 0.5)
    writer.add_bool("flag", True)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("half", np.arange(64, dtype=np.float16).reshape(2, 32))
    writer.add_tensor("whole", np.arange(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_a_file_is_read_as_it_was_written(small: bytes, broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(small))

    assert file.require("general.architecture", str) == "llama"
    assert file.get("llama.block_count", int) == 2
    assert file.get("llama.block_count", float) == 2.0
    assert file.get("flag", bool) is True
    assert file.get("words", list) == ["a", "bc", ""]
    assert file.get("absent", int) is None
    assert file.shapes == {"half": (2, 32), "whole": (3,)}
    assert file.types == {"half": "F16", "whole": "F32"}
    np.testing.assert_array_equal(file.tensor("half"), np.arange(64, dtype=np.float32).reshape(2, 32))
    assert "words" in file.metadata_keys


def test_a_missing_and_a_mistyped_value_are_named(small: bytes, broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(small))

    with pytest.raises(CheckpointError, match=r"no metadata 'llama\.width'; the file is incomplete"):
        file.require("llama.width", int)
    with pytest.raises(CheckpointError, match="flag is bool, expected str"):
        file.require("flag", str)
    with pytest.raises(CheckpointError, match="words is list, expected int"):
        file.get("words", int)


def test_a_missing_file_and_another_kind_of_file(tmp_path: Path, broken: Callable[[bytes], Path]) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist; give the path of a \.gguf file"):
        GgufFile(tmp_path / "nothing.gguf")
    with pytest.raises(CheckpointError, match="does not exist"):
        GgufFile(tmp_path)
    for data in (b"", b"GG", b"PK\x03\x04 a zip file", b'{"json": true}'):
        with pytest.raises(CheckpointError, match="is not a GGUF file"):
            GgufFile(broken(data))


def test_a_file_cut_anywhere_is_refused(small: bytes, broken: Callable[[bytes], Path]) -> None:
    """Every byte of the header, and some of the tensors; but not the padding that ends the file."""
    for length in (*range(4, len(small) - 64), len(small) - 33):
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            GgufFile(broken(small[:length]))


def test_a_real_file_cut_anywhere_is_refused(golden_llama: Path, broken: Callable[[bytes], Path]) -> None:
    data = (golden_llama / "llama.f16.gguf").read_bytes()
    for length in (*np.linspace(4, len(data) - 64, 23).astype(int), len(data) - 1):
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            GgufFile(broken(data[:length]))


HOSTILE = {
    "many tensors": HEADER + struct.pack("<QQ", HUGE, 0),
    "many pairs": HEADER + struct.pack("<QQ", 0, HUGE),
    "most counts": HEADER + struct.pack("<QQ", 2**64 - 1, 2**64 - 1),
    "long key": HEADER + struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE),
    "long string": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IQ", 8, HUGE),
    "long array": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 4, HUGE),
    "array just too long": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 0, 100) + b"x" * 99,
    "long array of strings": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, HUGE),
    "arrays in arrays": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) * 1000,
    "unknown type": HEADER + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IQ", 77, 0),
    "many dimensions": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<I", 2**31),
    "no dimensions": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IIQ", 0, 0, 0),
    "large tensor": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
    "far tensor": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 1, 0, HUGE),
    "unknown tensor type": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 1, 999, 0),
    "broken block": HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 33, 2, 0) + b"x" * 99,
    "doubled key": HEADER + struct.pack("<QQ", 0, 2) + 2 * (text(b"k") + struct.pack("<II", 4, 1)),
    "doubled tensor": HEADER
    + struct.pack("<QQ", 2, 0)
    + 2 * (text(b"t") + struct.pack("<IQIQ", 1, 1, 0, 0))
    + b"x" * 64,
    "odd alignment": HEADER + struct.pack("<QQ", 0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 3),
    "key not UTF-8": HEADER + struct.pack("<QQ", 0, 1) + text(b"\xff\xfe") + struct.pack("<II", 4, 1),
    "version 1": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
    "version 77": b"GGUF" + struct.pack("<IQQ", 77, 0, 0),
    "big endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_cost_one_sentence(name: str, broken: Callable[[bytes], Path]) -> None:
    with peak() as allocated, pytest.raises(CheckpointError, match="damaged or cut short") as caught:
        GgufFile(broken(HOSTILE[name]))

    assert "\n" not in str(caught.value)
    assert allocated.bytes < 2**20


def test_random_damage_is_never_more_than_a_checkpoint_error(small: bytes, broken: Callable[[bytes], Path]) -> None:
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        data = bytearray(small)
        for place in rng.integers(4, len(small) - 192, size=3):
            data[place] = int(rng.integers(256))
        try:
            file = GgufFile(broken(bytes(data)))
            for key in file.metadata_keys:
                file.get(key, str if key.startswith("general") else int)
            for name in file.shapes:
                file.tensor(name)
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_a_value_that_is_not_text_is_named(broken: Callable[[bytes], Path]) -> None:
    pair = text(b"general.name") + struct.pack("<I", 8) + text(b"caf\xe9")
    file = GgufFile(broken(HEADER + struct.pack("<QQ", 0, 1) + pair))

    with pytest.raises(CheckpointError, match=r"general\.name is not UTF-8"):
        file.get("general.name", str)


def test_a_tensor_type_without_a_reader_is_named(broken: Callable[[bytes], Path]) -> None:
    tensor = text(b"odd") + struct.pack("<IQIQ", 1, 256, gguf.GGMLQuantizationType.Q8_K, 0)
    data = HEADER + struct.pack("<QQ", 1, 0) + tensor
    file = GgufFile(broken(data + b"\0" * (-len(data) % 32 + 292)))

    with pytest.raises(CheckpointError, match="tensor odd has type Q8_K, which cannot be read here; use a file with"):
        file.tensor("odd")


def test_tensors_stay_on_disk_until_asked_for(broken: Callable[[bytes], Path]) -> None:
    """A file of 32 MB, nearly all of it one tensor."""
    count = 2**24
    path = broken(HEADER + struct.pack("<QQ", 1, 0) + text(b"t") + struct.pack("<IQIQ", 1, count, 1, 0))
    with path.open("r+b") as file:
        file.truncate(2 * count + 4096)

    with peak() as opening:
        gguf_file = GgufFile(path)
    with peak() as reading:
        gguf_file.tensor("t")

    assert opening.bytes < 2**20
    assert reading.bytes >= 4 * count
