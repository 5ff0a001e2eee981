"""Safetensors headers that lie: one clear `CheckpointError` for whatever is wrong, never a crash, never much memory."""

import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.numpy

from deployments.lm.checkpoint.safetensors_header import stored_tensors
from deployments.lm.checkpoint.stored import StoredFile
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import entry, peak, spelled

FOUR = bytes(4)
EIGHT = bytes(8)
# What the library takes without a word, and is still no model's.
LENIENT = {
    *("name of two lines", "no name", "long name", "doubled name"),
    *("many dimensions", "nothing of absurd sizes"),
}
HOSTILE = {
    "nothing": (b"", "it has 0 bytes"),
    "half a length": (b"\x10\0\0", "it has 3 bytes"),
    "longest length": (b"\xff" * 8 + b"{}", "its header has 18446744073709551615 bytes and the file 10"),
    "length beyond the file": (struct.pack("<Q", 3) + b"{}", "its header has 3 bytes and the file 10"),
    "length beyond the format": (struct.pack("<Q", 100_000_001) + b"{}", "its header has 100000001 bytes"),
    "no JSON": (spelled(b"tensor!!"), "Expecting value"),
    "cut JSON": (spelled(b'{"t": {"dtype"'), "delimiter"),
    "a list": (spelled([]), "expected an object"),
    "not UTF-8": (spelled(b'{"\xff": 1}'), "can't decode"),
    "deep nesting": (spelled(b'{"t":' + b"[" * 50_000), "nested too deep"),
    "doubled name": (
        spelled(b'{"t": %s, "t": %s}' % (2 * (b'{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}',)), FOUR),
        "its JSON has 't' twice",
    ),
    "no name": (spelled({"": entry()}, FOUR), "'' is not a name for a tensor"),
    "long name": (spelled({"t" * 2000: entry()}, FOUR), "is not a name for a tensor"),
    "name of two lines": (spelled({"a\nb": entry()}, FOUR), "is not a name for a tensor"),
    "half a character": (spelled(b'{"\\ud800": {}}'), "is not a name for a tensor"),
    "entry without anything": (spelled({"t": {}}), "tensor t has no type"),
    "entry that is a number": (spelled({"t": 1}), "tensor t has no type"),
    "type that is a number": (spelled({"t": entry(kind=4)}), "tensor t has no type"),
    "shape that is a number": (spelled({"t": entry(shape=1)}, FOUR), "no shape that a tensor can have"),
    "negative size": (spelled({"t": entry(shape=(-1,))}, FOUR), "no shape that a tensor can have"),
    "broken size": (spelled({"t": entry(shape=(1.0,))}, FOUR), "no shape that a tensor can have"),
    "size that is no number": (
        spelled(b'{"t": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}', FOUR),
        "no shape that a tensor can have",
    ),
    "true size": (spelled({"t": entry(shape=(True,))}, FOUR), "no shape that a tensor can have"),
    "sizes that overflow": (
        spelled({"t": entry(shape=(2**32, 2**32), places=(0, 0))}),
        "no shape that a tensor can have",
    ),
    "nothing of absurd sizes": (
        spelled({"t": entry(shape=(0, 2**40, 2**40), places=(0, 0))}),
        "no shape that a tensor can have",
    ),
    "many dimensions": (spelled({"t": entry(shape=(1,) * 9)}, FOUR), "no shape that a tensor can have"),
    "no place": (spelled({"t": entry(places=())}, FOUR), "no place in the file"),
    "negative place": (spelled({"t": entry(places=(-4, 0))}, FOUR), "no place in the file"),
    "place that runs backwards": (spelled({"t": entry(places=(4, 0))}, FOUR), "no place in the file"),
    "place beyond the file": (spelled({"t": entry(places=(0, 4))}), "its tensors end at byte"),
    "place far beyond": (spelled({"t": entry(shape=(2**40,), places=(0, 2**42))}), "its tensors end at byte"),
    "place too small": (spelled({"t": entry(shape=(2,))}, FOUR), r"of type F32 and shape \[2\] has 4 bytes"),
    "place too large": (spelled({"t": entry(kind="F16")}, FOUR), r"of type F16 and shape \[1\] has 4 bytes"),
    "overlap": (spelled({"a": entry(), "b": entry(places=(2, 6))}, EIGHT), "b does not begin where a ends"),
    "one place for two": (spelled({"a": entry(), "b": entry()}, FOUR), "b does not begin where a ends"),
    "gap between": (spelled({"a": entry(), "b": entry(places=(8, 12))}, bytes(12)), "b does not begin where a ends"),
    "gap before": (spelled({"a": entry(places=(4, 8))}, EIGHT), "a does not begin where the header ends"),
    "bytes left over": (spelled({"a": entry()}, EIGHT), "its tensors end at byte"),
    "cut short": (spelled({"a": entry()}, bytes(3)), "its tensors end at byte"),
    "many lists": (spelled(b'{"t": [' + b"[]," * 1_000_001), "lists and objects"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_cost_one_sentence(name: str, tmp_path: Path) -> None:
    data, reason = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with peak() as allocated, pytest.raises(CheckpointError, match=f"damaged or cut short .*({reason})") as caught:
        stored_tensors(StoredFile(path))

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert allocated.bytes < 3 * len(data) + 2**18


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - LENIENT))
def test_what_the_library_refuses_is_refused_here(name: str) -> None:
    """The other way round is checked by reading what it writes."""
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load(HOSTILE[name][0])


KINDS = {
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "a Git LFS pointer.* `git lfs pull`",
    b"PK\x03\x04 archive": "a PyTorch or zip archive; convert it to safetensors",
    b"<!DOCTYPE html><html>": "a web page; the download failed",
    b"GGUF\x03\0\0\0": "a GGUF file",
}


@pytest.mark.parametrize("data", KINDS)
def test_other_kinds_of_files_are_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors is not a safetensors file \({KINDS[data]}"):
        stored_tensors(StoredFile(path))


def test_a_file_without_tensors_and_one_without_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(spelled({"__metadata__": {"format": "pt"}}))
    assert stored_tensors(StoredFile(path)) == {}
    path.write_bytes(spelled({"none": entry(shape=(0, 3), places=(0, 0)), "one": entry(shape=(), places=(0, 4))}, FOUR))
    found = stored_tensors(StoredFile(path))
    assert {name: tensor.read(None).shape for name, tensor in found.items()} == {"none": (0, 3), "one": ()}
