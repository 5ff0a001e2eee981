"""GGUF headers that lie: one clear `CheckpointError` for whatever is wrong, never a crash, never much memory."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import HEADER, one_tensor, peak, tensor_info, text

HUGE = 2**60


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def pairs(*given: bytes) -> bytes:
    return HEADER + struct.pack("<QQ", 0, len(given)) + b"".join(given)


def tensors(*infos: bytes, data: int = 0) -> bytes:
    head = HEADER + struct.pack("<QQ", len(infos), 0) + b"".join(infos)
    return head + bytes(-len(head) % 32 + data)


def f32(name: bytes, *, shape: tuple[int, ...] = (8,), begin: int = 0) -> bytes:
    return tensor_info(name, shape=shape, kind=0, begin=begin)


HOSTILE = {
    "many tensors": (HEADER + struct.pack("<QQ", HUGE, 0), "announces .* entries"),
    "many pairs": (HEADER + struct.pack("<QQ", 0, HUGE), "announces .* entries"),
    "more pairs than any model": (HEADER + struct.pack("<QQ", 0, 100_001) + bytes(2**21), "announces 100001 entries"),
    "most counts": (HEADER + struct.pack("<QQ", 2**64 - 1, 2**64 - 1), "announces"),
    "long key": (HEADER + struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE), "a name is .* bytes long"),
    "long string": (pairs(pair(b"k", 8, struct.pack("<Q", HUGE))), "is needed and the file ends at"),
    "long array": (pairs(pair(b"k", 9, struct.pack("<IQ", 4, HUGE))), "is needed and the file ends at"),
    "array just too long": (pairs(pair(b"k", 9, struct.pack("<IQ", 0, 100) + b"x" * 99)), "is needed"),
    "long array of strings": (pairs(pair(b"k", 9, struct.pack("<IQ", 8, HUGE))), "announces .* texts"),
    "strings that overflow": (
        pairs(pair(b"k", 9, struct.pack("<IQQQQ", 8, 3, 2**64 - 1, 2**64 - 1, 2**64 - 1))),
        "is needed and the file ends at",
    ),
    "arrays in arrays": (pairs(pair(b"k", 9, struct.pack("<IQ", 9, 1) * 1000)), "k has the unknown type 9"),
    "unknown type": (pairs(pair(b"k", 77, bytes(8))), "k has the unknown type 77"),
    "many dimensions": (tensors(text(b"t") + struct.pack("<I", 2**31)), "has 2147483648 dimensions"),
    "five dimensions": (tensors(f32(b"t", shape=(1, 1, 1, 1, 1)), data=4), "has 5 dimensions"),
    "no dimensions": (tensors(f32(b"t", shape=())), "has 0 dimensions"),
    "an empty dimension": (tensors(f32(b"t", shape=(0, 8))), "has the shape"),
    "large tensor": (tensors(f32(b"t", shape=(2**40, 2**40))), "tensor t ends at byte"),
    "tensor that overflows": (tensors(f32(b"t", shape=(2**32, 2**32))), "tensor t ends at byte"),
    "far tensor": (tensors(f32(b"t", begin=HUGE)), "tensor t ends at byte"),
    "cut tensor": (tensors(f32(b"t"), data=31), "tensor t ends at byte"),
    "unaligned tensor": (tensors(f32(b"t", begin=4), data=64), "begins at 4, which is no multiple of 32"),
    "overlapping tensors": (
        tensors(f32(b"one", shape=(9,)), f32(b"two", begin=32), data=64),
        "tensors one and two overlap",
    ),
    "tensors in one place": (tensors(f32(b"one"), f32(b"two"), data=64), "tensors one and two overlap"),
    "unknown tensor type": (tensors(tensor_info(b"t", shape=(1,), kind=999, begin=0)), "999 is not a valid"),
    "withdrawn tensor type": (tensors(tensor_info(b"t", shape=(32,), kind=31, begin=0)), "31 is not a valid"),
    "broken block": (one_tensor(shape=(33,), kind=2, size=99), r"of type Q4_0 has the shape \(33,\)"),
    "doubled key": (pairs(*2 * [pair(b"k", 4, bytes(4))]), "it has k twice"),
    "doubled tensor": (tensors(f32(b"t"), f32(b"t", begin=32), data=64), "it has tensor t twice"),
    "odd alignment": (pairs(pair(b"general.alignment", 4, struct.pack("<I", 3))), "alignment is 3, which is no power"),
    "no alignment": (pairs(pair(b"general.alignment", 4, bytes(4))), "alignment is 0, which is no power"),
    "alignment in words": (pairs(pair(b"general.alignment", 8, text(b"32"))), "alignment is None"),
    "alignments": (pairs(pair(b"general.alignment", 9, struct.pack("<IQI", 4, 1, 32))), "alignment is"),
    "key not UTF-8": (pairs(pair(b"\xff\xfe", 4, bytes(4))), "can't decode"),
    "key of two lines": (pairs(pair(b"a\nb", 4, bytes(4))), "characters that cannot be printed"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "format version is 1"),
    "version 77": (b"GGUF" + struct.pack("<IQQ", 77, 0, 0), "format version is 77"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_cost_one_sentence(name: str, broken: Callable[[bytes], Path]) -> None:
    data, reason = HOSTILE[name]
    path = broken(data)
    with peak() as allocated, pytest.raises(CheckpointError, match=f"damaged or cut short .*{reason}") as caught:
        GgufFile(path)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert allocated.bytes < 2**18


@pytest.mark.parametrize("data", [b"GGUF" + struct.pack(">IQQ", 3, 0, 0), b"FUGG" + struct.pack(">IQQ", 3, 0, 0)])
def test_the_other_byte_order_has_a_sentence_of_its_own(data: bytes, broken: Callable[[bytes], Path]) -> None:
    with pytest.raises(CheckpointError, match=r"is a big-endian GGUF file.* convert it with `gguf-convert-endian FILE"):
        GgufFile(broken(data))


def test_a_file_written_big_endian_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("t", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(CheckpointError, match="is a big-endian GGUF file"):
        GgufFile(path)


def test_a_file_cut_anywhere_is_refused(small: bytes, broken: Callable[[bytes], Path]) -> None:
    """Every byte of the header, and of the tensors; but not the padding that ends the file."""
    path = broken(small)
    end = max(tensor.begin + tensor.size for tensor in GgufFile(path)._tensors.values())
    for length in range(4, end):
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            GgufFile(broken(small[:length]))
    assert GgufFile(broken(small[:end])).shapes


def test_a_real_file_cut_anywhere_is_refused(golden_llama: Path, broken: Callable[[bytes], Path]) -> None:
    data = (golden_llama / "llama.f16.gguf").read_bytes()
    for length in (4, 5, 23, 24, 1000, 20_000, len(data) // 2, len(data) - 64, len(data) - 1):
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            GgufFile(broken(data[:length]))


def test_a_larger_alignment_is_followed(broken: Callable[[bytes], Path]) -> None:
    head = HEADER + struct.pack("<QQ", 2, 1) + pair(b"general.alignment", 4, struct.pack("<I", 64))
    head += f32(b"one") + f32(b"two", begin=64)
    body = bytes(-len(head) % 64) + struct.pack("<8f", *range(8)) + bytes(32) + struct.pack("<8f", *range(8, 16))
    file = GgufFile(broken(head + body))

    assert [*file.tensor("one"), *file.tensor("two")] == list(range(16))
