"""Golden folders with something about them changed: other numbers, other names of tensors, other tensors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

type Json = str | int | float | bool | list[str] | Mapping[str, Json] | None


def changed_folder(
    golden: Path,
    /,
    *,
    into: Path,
    config: Mapping[str, Json] | None = None,
    without: tuple[str, ...] = (),
    renamed: Callable[[str], str] = lambda name: name,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A copy of a golden folder.

    Args:
        config: keys of config.json that are replaced or added.
        without: keys that it loses.
        renamed: a tensor's new name.
        tensors: more of them.
    """
    into.mkdir(exist_ok=True)
    kept = json.loads((golden / "config.json").read_text()) | dict(config or {})
    (into / "config.json").write_text(json.dumps({key: value for key, value in kept.items() if key not in without}))
    stored = load_file(golden / "model.safetensors")
    save_file(
        {renamed(name): value for name, value in stored.items()} | dict(tensors or {}), into / "model.safetensors"
    )
    return into
