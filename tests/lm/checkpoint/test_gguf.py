"""GGUF files, whole and broken: one clear `CheckpointError` for whatever is wrong, never a crash, never much memory."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.checkpoint.source import Format
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import HEADER, one_tensor, peak, text


def test_a_file_is_read_as_it_was_written(small: bytes, broken: Callable[[bytes], Path]) -> None:
    path = broken(small)
    file = GgufFile(path)

    assert (file.name, file.path, file.files) == ("broken.gguf", path, (path,))
    assert (file.format, file.architecture) == (Format.GGUF, "llama")
    assert file.get("llama.block_count", int) == 2
    assert file.get("llama.block_count", float) == 2.0
    assert file.get("llama.epsilon", float) == 0.5
    assert file.get("flag", bool) is True
    assert file.get("words", list) == ["a", "bc", ""]
    assert file.get("numbers", list) == [1, 2, 3]
    assert file.get("absent", int) is None
    assert file.shapes == {"half": (2, 32), "whole": (3,), "blocks": (4, 32)}
    assert file.types == {"half": "F16", "whole": "F32", "blocks": "Q4_0"}
    assert {"words", "general.architecture"} <= file.metadata_keys
    half = file.tensor("half")
    assert half.dtype == np.float32
    assert half.flags.c_contiguous
    np.testing.assert_array_equal(half, np.arange(64, dtype=np.float32).reshape(2, 32))
    np.testing.assert_array_equal(file.tensor("whole"), np.arange(3, dtype=np.float32))


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None), slice(2, 2), slice(3, None), slice(-1, None), slice(0, 9), slice(3, 1)]
)
@pytest.mark.parametrize("name", ["half", "whole", "blocks"])
def test_a_part_is_that_part_of_the_whole(
    small: bytes, broken: Callable[[bytes], Path], name: str, part: slice
) -> None:
    file = GgufFile(broken(small))

    np.testing.assert_array_equal(file.tensor(name, part=part), file.tensor(name)[part], strict=True)


def test_a_part_that_splits_a_block(broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(one_tensor(shape=(64,), kind=gguf.GGMLQuantizationType.Q8_0, data=bytes(range(68)))))

    np.testing.assert_array_equal(file.tensor("t", part=slice(5, 40)), file.tensor("t")[5:40], strict=True)


def test_what_cannot_be_a_part_or_a_tensor_is_named(small: bytes, broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(small))

    with pytest.raises(CheckpointError, match=r"tensor half cannot be read \(a part must be contiguous"):
        file.tensor("half", part=slice(0, 2, 2))
    with pytest.raises(CheckpointError, match=r"broken\.gguf has no tensor absent; the file is incomplete"):
        file.tensor("absent")


def test_a_missing_and_a_mistyped_value_are_named(small: bytes, broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(small))

    with pytest.raises(CheckpointError, match=r"no metadata 'llama\.width'; the file is incomplete"):
        file.require("llama.width", int)
    with pytest.raises(CheckpointError, match="flag is bool, expected str"):
        file.require("flag", str)
    with pytest.raises(CheckpointError, match="words is list, expected int"):
        file.get("words", int)
    with pytest.raises(CheckpointError, match="flag is bool, expected int"):
        file.get("flag", int)


def test_a_missing_file_and_another_kind_of_file(tmp_path: Path, broken: Callable[[bytes], Path]) -> None:
    with pytest.raises(CheckpointError, match="does not exist; give the path of a model file or folder"):
        GgufFile(tmp_path / "nothing.gguf")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        GgufFile(tmp_path)
    for data in (b"", b"GG", b"PK\x03\x04 a zip file", b'{"json": true}'):
        with pytest.raises(CheckpointError, match="is not a GGUF file"):
            GgufFile(broken(data))


def test_a_value_that_is_not_text_is_named(broken: Callable[[bytes], Path]) -> None:
    pair = text(b"general.name") + struct.pack("<I", 8) + text(b"caf\xe9")
    file = GgufFile(broken(HEADER + struct.pack("<QQ", 0, 1) + pair))

    with pytest.raises(CheckpointError, match=r"general\.name is not UTF-8"):
        file.get("general.name", str)


def test_an_architecture_that_is_no_name_is_refused(broken: Callable[[bytes], Path]) -> None:
    for value in (b"", b"two\nlines", b"x" * 65):
        pair = text(b"general.architecture") + struct.pack("<I", 8) + text(value)
        with pytest.raises(CheckpointError, match="its architecture is not a name"):
            _ = GgufFile(broken(HEADER + struct.pack("<QQ", 0, 1) + pair)).architecture


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "Q1_0"])
def test_a_tensor_type_without_a_reader_is_named(broken: Callable[[bytes], Path], kind: str) -> None:
    file = GgufFile(broken(one_tensor(shape=(256,), kind=gguf.GGMLQuantizationType[kind], size=1024)))

    assert file.types == {"t": kind}
    with pytest.raises(CheckpointError, match=f"tensor t has type {kind}, which cannot be read here; use a file with"):
        file.tensor("t")


def test_a_file_that_changes_under_its_reader_is_noticed(small: bytes, broken: Callable[[bytes], Path]) -> None:
    file = GgufFile(broken(small))
    broken(small[:-70])

    with pytest.raises(CheckpointError, match="changed while it was being read"):
        file.tensor("half")
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        file.get("words", list)


def test_tensors_stay_on_disk_until_asked_for(broken: Callable[[bytes], Path]) -> None:
    """A file of 32 MB, nearly all of it one tensor."""
    rows, width = 2**12, 2**12
    path = broken(one_tensor(shape=(rows, width), kind=gguf.GGMLQuantizationType.F16))
    with path.open("r+b") as file:
        file.truncate(2 * rows * width + 4096)

    with peak() as opening:
        gguf_file = GgufFile(path)
    with peak() as part:
        gguf_file.tensor("t", part=slice(100, 110))

    assert opening.bytes < 2**18
    assert part.bytes < 4 * 10 * width + 2**20


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_reading_takes_the_tensor_and_little_more(broken: Callable[[bytes], Path], kind: str) -> None:
    """A tensor of 32 MiB as float32."""
    of_kind = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[of_kind]
    rows, width = 2**11, 2**12
    path = broken(one_tensor(shape=(rows, width), kind=of_kind))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + rows * width // block * size)
    gguf_file = GgufFile(path)

    with peak() as reading:
        values = gguf_file.tensor("t")

    assert values.nbytes == 2**25
    assert reading.bytes < values.nbytes + 3 * 2**20
