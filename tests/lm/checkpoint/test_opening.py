"""A path leads to one model, whatever it is, or to one sentence."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Format
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import write_folder
from tests.lm.checkpoint.test_splits import write_set

TENSORS = {"t": np.ones((2, 2), np.float32)}


def test_a_file_is_opened_by_its_content(tmp_path: Path, small: bytes) -> None:
    odd = tmp_path / "model.bin"
    odd.write_bytes(small)
    folder = write_folder(tmp_path / "model", tensors=TENSORS)
    named = (folder / "model.safetensors").rename(folder / "weights")

    assert open_checkpoint(odd).format is Format.GGUF
    assert open_checkpoint(str(named)).format is Format.SAFETENSORS


def test_a_folder_is_opened_by_what_is_in_it(tmp_path: Path, small: bytes) -> None:
    folder = write_folder(tmp_path / "model", tensors=TENSORS)
    (folder / "model.gguf").write_bytes(small)
    (folder / "mmproj-model.gguf").write_bytes(small)
    assert open_checkpoint(folder).format is Format.SAFETENSORS
    (folder / "config.json").unlink()

    assert open_checkpoint(folder).format is Format.GGUF
    assert open_checkpoint(folder).files == (folder / "model.gguf",)


def test_a_folder_of_one_split_model(tmp_path: Path) -> None:
    paths = write_set(tmp_path)

    assert open_checkpoint(tmp_path).name == paths[0].name
    assert open_checkpoint(paths[2]).files == tuple(paths)


def write(*names: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name in names:
            (folder / name).write_bytes(b"12345678")
        return folder

    return make


def unreadable_name(folder: Path) -> Path:
    return folder / ("x" * 300)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.gguf")
    return folder / "pipe.gguf"


def loop(folder: Path) -> Path:
    (folder / "loop.gguf").symlink_to("loop.gguf")
    return folder / "loop.gguf"


def pointer(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    return path


def file_with(data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "model").write_bytes(data)
        return folder / "model"

    return make


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing there": (lambda folder: folder / "nothing", "nothing does not exist; give the path of a model file"),
    "empty folder": (write(), "holds no model; give a .gguf file or a folder with config.json"),
    "other files": (write("README.md"), "holds no model"),
    "PyTorch": (write("pytorch_model.bin", "config.json"), "holds PyTorch files only.* convert them to safetensors"),
    "PyTorch without more": (write("model.pt"), "holds PyTorch files only"),
    "no weights": (write("config.json", "tokenizer.json"), r"holds config\.json and no weights; download the rest"),
    "no configuration": (write("model.safetensors"), r"holds safetensors files and no config\.json"),
    "several models": (
        write("b.gguf", "a.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf"),
        r"several GGUF models; give the path of one of a\.gguf, b\.gguf, c-00001-of-00002\.gguf$",
    ),
    "very many models": (write(*(f"{n:02}.gguf" for n in range(30))), r"one of 00\.gguf, .*07\.gguf and 22 more"),
    "a lone safetensors file": (
        lambda folder: write("a.safetensors")(folder) / "a.safetensors",
        r"has no config\.json beside it, which says what network it is",
    ),
    "empty file": (file_with(b""), r"is not a model file \(it starts with b''\); give a \.gguf file or a folder"),
    "text": (file_with(b"once upon a time"), "is not a model file .it starts with b'once upo'"),
    "pointer": (file_with(b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer that stands for"),
    "pointer by its name": (pointer, "a Git LFS pointer that stands for"),
    "pickle": (file_with(b"\x80\x02}q\x00."), "a Python pickle; convert it to safetensors"),
    "archive": (file_with(b"PK\x03\x04...."), "a PyTorch or zip archive; convert it to safetensors"),
    "web page": (file_with(b"<!DOCTYPE html>"), "a web page; the download failed"),
    "before GGUF": (file_with(b"tjgg\x03\0\0\0"), "a GGML file, from before GGUF"),
    "big-endian": (file_with(b"GGUF\0\0\0\x03" + bytes(16)), "is a big-endian GGUF file"),
    "damaged": (file_with(b"GGUF\x03\0\0\0"), "is damaged or cut short"),
    "pipe": (pipe, "is not a regular file"),
    "loop of links": (loop, "cannot be read"),
    "name too long": (unreadable_name, "cannot be read"),
    "no name": (lambda _: Path("a\0b"), r"'a\\x00b' is not a path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_costs_one_sentence(tmp_path: Path, name: str) -> None:
    make, sentence = REFUSED[name]
    path = make(tmp_path)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        open_checkpoint(path)

    assert "\n" not in str(caught.value)
