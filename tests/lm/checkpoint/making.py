"""Small model files, whole and broken, made byte by byte, and the memory that reading them takes."""

import json
import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

HEADER = b"GGUF" + struct.pack("<I", 3)
CONFIG = {"model_type": "llama", "hidden_size": 4}


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
    """A string as GGUF spells it."""
    return struct.pack("<Q", len(value)) + value


def tensor_info(name: bytes, *, shape: tuple[int, ...], kind: int, begin: int) -> bytes:
    """A tensor's entry in a GGUF header; the shape is outermost dimension first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, begin)


def one_tensor(*, shape: tuple[int, ...], kind: int, size: int | None = None, data: bytes = b"") -> bytes:
    """A GGUF file that holds a tensor `t` of a type, and `size` bytes for it, or just its data."""
    head = HEADER + struct.pack("<QQ", 1, 0) + tensor_info(b"t", shape=shape, kind=kind, begin=0)
    body = data if size is None else bytes(size)
    return head + b"\0" * (-len(head) % 32) + body


def write_small(path: Path) -> bytes:
    """A GGUF file with a little of everything that one may hold."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.epsilon", 0.5)
    writer.add_bool("flag", True)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("half", np.arange(64, dtype=np.float16).reshape(2, 32))
    writer.add_tensor("whole", np.arange(3, dtype=np.float32))
    blocks = np.arange(4 * 18, dtype=np.uint8).reshape(4, 18)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def entry(*, kind: object = "F32", shape: object = (1,), places: object = (0, 4)) -> dict[str, object]:
    """A tensor's entry in a safetensors header."""
    return {"dtype": kind, "shape": shape, "data_offsets": places}


def spelled(header: object, data: bytes = b"") -> bytes:
    """A safetensors file with this header, given as JSON or as what to make it of."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def write_folder(
    folder: Path, *, tensors: Mapping[str, np.ndarray], config: object = CONFIG, name: str = "model.safetensors"
) -> Path:
    """A model folder; its one safetensors file is written by the safetensors library."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(dict(tensors), folder / name)
    return folder
