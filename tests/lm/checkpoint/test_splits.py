"""Split GGUF models, as the gguf package writes them: any part opens all, and a wrong set is one clear error."""

import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.checkpoint.splits import part_of
from deployments.messages.errors import CheckpointError

TENSORS = {f"t{n}": np.arange(n, n + 40, dtype=np.float32).reshape(4, 10) for n in range(5)}


def write_set(folder: Path, *, name: str = "model", shift: float = 0.0) -> list[Path]:
    """A model of five tensors in three files."""
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 2)
    for tensor, values in TENSORS.items():
        writer.add_tensor(tensor, values + np.float32(shift))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}-*.gguf"))


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_set(tmp_path: Path, given: int) -> None:
    paths = write_set(tmp_path)
    file = GgufFile(paths[given])

    assert [path.name for path in paths] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert (file.path, file.files, file.name) == (paths[0], tuple(paths), "model-00001-of-00003.gguf")
    assert (file.architecture, file.get("llama.block_count", int)) == ("llama", 2)
    assert set(file.shapes) == set(TENSORS)
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(file.tensor(name), values)
        np.testing.assert_array_equal(file.tensor(name, part=slice(1, 3)), values[1:3])


def test_missing_parts_are_all_named(tmp_path: Path) -> None:
    first, second, third = write_set(tmp_path)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"is one of 3 parts, and model-00002-of-00003\.gguf is missing; put all"):
        GgufFile(third)
    first.unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-of-00003\.gguf, model-00002-of-00003\.gguf are missing"):
        GgufFile(third)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf is damaged or cut short"):
        GgufFile(paths[0])
    paths[1].write_bytes(b"not a part")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf is not a GGUF file"):
        GgufFile(paths[0])


def test_parts_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    shutil.copy(paths[2], paths[1])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf is not part 2 of this set of 3"):
        GgufFile(paths[0])


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    writer = gguf.GGUFWriter(other / "model.gguf", "llama", split_max_tensors=1)
    for number in range(3):
        writer.add_tensor(f"t{number}", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copy(other / "model-00002-of-00003.gguf", paths[1])

    with pytest.raises(CheckpointError, match="is not part 2 of this set of 3"):
        GgufFile(paths[0])


@pytest.mark.parametrize(("old", "new"), [(b"t2", b"t0"), (b"t2", b"t3")])
def test_a_tensor_in_two_parts_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    paths = write_set(tmp_path)
    info = struct.pack("<Q", 2) + old
    data = paths[1].read_bytes()
    assert data.count(info) == 1
    paths[1].write_bytes(data.replace(info, struct.pack("<Q", 2) + new))

    with pytest.raises(CheckpointError, match=f"both hold t0|it has tensor {new.decode()} twice"):
        GgufFile(paths[0])


def test_a_set_that_counts_its_tensors_wrong_is_refused(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    key = struct.pack("<Q", 19) + b"split.tensors.count" + struct.pack("<I", 5)
    for path in paths:
        data = path.read_bytes()
        assert data.count(key + struct.pack("<i", 5)) == 1
        path.write_bytes(data.replace(key + struct.pack("<i", 5), key + struct.pack("<i", 6)))

    with pytest.raises(CheckpointError, match=r"the 3 parts of model-00001-of-00003\.gguf hold 5 tensors and say 6"):
        GgufFile(paths[0])


def test_a_renamed_part_says_what_to_call_it(tmp_path: Path) -> None:
    for number, path in enumerate(write_set(tmp_path)):
        renamed = path.rename(tmp_path / f"part{number}.gguf")
        with pytest.raises(CheckpointError, match=rf"is part {number + 1} of 3 .* call the parts NAME-00001-of-00003"):
            GgufFile(renamed)


def test_a_set_of_absurdly_many_parts_is_refused(tmp_path: Path) -> None:
    path = write_set(tmp_path)[0]
    key = struct.pack("<Q", 11) + b"split.count" + struct.pack("<I", 2)
    data = path.read_bytes()
    assert data.count(key + struct.pack("<H", 3)) == 1
    path.write_bytes(data.replace(key + struct.pack("<H", 3), key + struct.pack("<H", 65535)))

    with pytest.raises(CheckpointError, match="is part 1 of 65535 and its name does not say so"):
        GgufFile(path)


def test_names_of_parts() -> None:
    assert part_of(Path("a/b-00002-of-00003.gguf")) == ("b", 2, 3)
    assert part_of(Path("b-00002-of-00003-00001-of-00002.gguf")) == ("b-00002-of-00003", 1, 2)
    for name in ("b.gguf", "b-2-of-3.gguf", "b-00002-of-00003.bin", "-00001-of-00002.gguf"):
        assert part_of(Path(name)) is None
