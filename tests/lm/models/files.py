"""Golden GGUF files with something about them changed: other numbers, other tensors."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

type Value = bool | int | float | str


def changed_file(
    golden: Path,
    /,
    *,
    into: Path,
    numbers: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    architecture: str | None = None,
) -> Path:
    """A copy of a golden file's network; its tokenizer is left out.

    Args:
        numbers: keys, without the architecture's name before them, that are replaced, added, or lost (`None`).
        tensors: the same of tensors.
    """
    reader = gguf.GGUFReader(golden)
    own = str(reader.fields["general.architecture"].contents())
    kept: dict[str, Value | list[bool] | None] = {
        key.removeprefix(f"{own}."): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{own}.")
    }
    stored: dict[str, np.ndarray | None] = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
    }
    writer = gguf.GGUFWriter(into, architecture or own)
    for name, value in (kept | dict(numbers or {})).items():
        add(writer, key=f"{architecture or own}.{name}", value=value)
    for name, values in (stored | dict(tensors or {})).items():
        if values is not None:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def add(writer: gguf.GGUFWriter, *, key: str, value: Value | list[bool] | None) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_int64(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
