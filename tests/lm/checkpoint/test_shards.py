"""Which files of a folder are its model, and an index that says what it must not."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.safetensors_folder import SafetensorsFolder
from deployments.lm.checkpoint.shards import find_shards
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import write_folder

INDEX = "model.safetensors.index.json"
NAMES = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]


def write_shards(folder: Path, *, names: list[str] = NAMES) -> Path:
    """A model of two tensors in each file, all of them different."""
    for number, name in enumerate(names):
        tensors = {f"t{2 * number + n}": np.full((2, 3), 2 * number + n, np.float32) for n in (0, 1)}
        write_folder(folder, tensors=tensors, name=name)
    return folder


def write_index(folder: Path, *, owners: Mapping[str, object]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": owners}))


OWNERS = {f"t{n}": NAMES[n // 2] for n in range(6)}


def assert_whole(folder: SafetensorsFolder, *, count: int = 6) -> None:
    assert set(folder.shapes) == {f"t{n}" for n in range(count)}
    for n in range(count):
        assert (folder.tensor(f"t{n}") == n).all()


@pytest.mark.parametrize("given", ["", *NAMES])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_sharded_models_are_whole(tmp_path: Path, given: str, is_indexed: bool) -> None:
    folder = write_shards(tmp_path / "model")
    if is_indexed:
        write_index(folder, owners=OWNERS)
    opened = SafetensorsFolder(folder / given)

    assert_whole(opened)
    assert opened.path == folder
    assert [path.name for path in opened.files] == ["config.json", *([INDEX] if is_indexed else []), *NAMES]


def test_files_of_any_names_without_an_index(tmp_path: Path) -> None:
    assert_whole(SafetensorsFolder(write_shards(tmp_path / "model", names=["b.safetensors", "a.safetensors"])), count=4)


def test_one_file_is_taken_before_all_others(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "model")
    write_index(folder, owners=OWNERS)
    write_folder(folder, tensors={"t0": np.zeros((2, 3), np.float32)})

    assert_whole(SafetensorsFolder(folder), count=1)
    assert_whole(SafetensorsFolder(folder / NAMES[1]))


def test_a_file_that_is_asked_for_is_taken_alone(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "model")
    write_index(folder, owners=OWNERS)
    write_folder(folder, tensors={"t0": np.zeros(1, np.float32)}, name="other.safetensors")

    assert find_shards(folder, only=folder / "other.safetensors").paths == (folder / "other.safetensors",)


def test_an_index_decides_which_file_has_a_tensor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tensors={"t0": np.ones(2, np.float32)}, name="a.safetensors")
    write_folder(folder, tensors={"t0": np.zeros(2, np.float32), "t1": np.ones(2, np.float32)}, name="b.safetensors")
    write_index(folder, owners={"t0": "b.safetensors", "t1": "b.safetensors", "t2": "a.safetensors"})
    with pytest.raises(CheckpointError, match=r"index\.json names 't2', which the files it says do not hold"):
        SafetensorsFolder(folder)
    write_folder(folder, tensors={"t0": np.ones(2), "t2": np.full(2, 2.0, np.float32)}, name="a.safetensors")

    assert_whole(SafetensorsFolder(folder), count=3)


@pytest.mark.parametrize("is_indexed", [True, False])
def test_missing_shards_are_all_named(tmp_path: Path, is_indexed: bool) -> None:
    folder = write_shards(tmp_path / "model")
    if is_indexed:
        write_index(folder, owners=OWNERS)
    (folder / NAMES[0]).unlink()
    (folder / NAMES[2]).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {NAMES[0]}, {NAMES[2]} of 3 files; download the rest"):
        SafetensorsFolder(folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "a/b.safetensors",
        "..\\secret.safetensors",
        "..",
        "",
        "secret.bin",
        "a\nb.safetensors",
        "a\0.safetensors",
        "x" * 300 + ".safetensors",
        7,
        None,
        ["a.safetensors"],
    ],
)
def test_an_index_stays_in_its_folder(tmp_path: Path, shard: object) -> None:
    write_folder(tmp_path, tensors={"t0": np.ones(2, np.float32)}, name="secret.safetensors")
    folder = write_shards(tmp_path / "model")
    write_index(folder, owners=OWNERS | {"t0": shard})
    with pytest.raises(CheckpointError, match=r"says that 't0' is in .* no safetensors file of its folder") as caught:
        SafetensorsFolder(folder)

    assert "\n" not in str(caught.value)


def test_links_as_the_hub_keeps_them_are_followed(tmp_path: Path) -> None:
    stored = write_folder(tmp_path / "blobs", tensors={"t0": np.zeros((2, 3), np.float32)})
    (stored / "model.safetensors").rename(stored / "0123abcd")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").symlink_to("../blobs/config.json")
    (snapshot / "model.safetensors").symlink_to("../blobs/0123abcd")

    assert_whole(SafetensorsFolder(snapshot), count=1)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is damaged .Expecting value"),
        (b"[]", "is damaged .its JSON is list"),
        (b"{}", "has no weight_map"),
        (b'{"weight_map": {}}', "has no weight_map"),
        (b'{"weight_map": []}', "has no weight_map"),
        (b'{"weight_map": {"t0": "a.safetensors", "t0": "b.safetensors"}}', "is damaged .its JSON has 't0' twice"),
        (b'{"weight_map":' * 50_000, "is damaged .its JSON is nested too deep"),
    ],
)
def test_a_broken_index_is_named(tmp_path: Path, data: bytes, sentence: str) -> None:
    folder = write_shards(tmp_path / "model")
    (folder / INDEX).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"index\.json {sentence}"):
        SafetensorsFolder(folder)
