import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from serve_app.inspecting.report import inspect_checkpoint

COMMAND = [sys.executable, "-m", "serve_app.cli", "inspect"]


def write_sparse(folder: Path, *, tensors: dict[str, list[int]], config: dict[str, object]) -> None:
    """A safetensors folder whose weights take no room: a hole in the file."""
    offset, header = 0, {}
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def test_no_weight_is_read_and_no_device_started(tmp_path: Path) -> None:
    """40 GB of weights, and a platform that there is none of."""
    tensors = {"model.embed_tokens.weight": [100_000, 100_000], "model.layers.0.mlp.up_proj.weight": [100_000, 100_000]}
    write_sparse(tmp_path, tensors=tensors, config={"model_type": "llama", "num_hidden_layers": 1})

    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, str(tmp_path), "--json"],
        env=os.environ | {"JAX_PLATFORMS": "nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["header"]["types"] == [
        {"name": "BF16", "tensors": 2, "parameters": 20_000_000_000, "bytes": 40_000_000_000}
    ]
    assert "describes no" in found["refusal"] or "has no" in found["refusal"]
    assert time.monotonic() - began < 60


def test_an_architecture_nobody_knows(tmp_path: Path) -> None:
    write_sparse(
        tmp_path,
        tensors={"model.embed_tokens.weight": [10, 4], "h.0.weight": [4, 4]},
        config={"model_type": "someday", "num_hidden_layers": 3, "hidden_size": 4},
    )

    found = inspect_checkpoint(tmp_path)

    assert found.refusal is not None
    assert "'someday' model; this version runs:" in found.refusal
    assert found.header.sizes == {"layers": (3,), "width": (4,), "vocabulary": (10,)}
    assert found.header.parameters == 56
    assert {one.precision: one.cache_per_1k for one in found.memory} == dict.fromkeys(Precision)
    assert not any(one.runs for one in found.drafters)
    text = "\n".join(found.lines())
    assert "no: " in text
    assert "unknown" in text


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_both_formats_say_the_same(goldens: Path, name: str) -> None:
    folder = inspect_checkpoint(goldens / name)
    file = inspect_checkpoint(goldens / name / f"{name}.f16.gguf")

    assert folder.refusal is file.refusal is None
    assert folder.header.parameters == file.header.parameters
    assert folder.memory == file.memory
    assert [(one.kind, one.runs) for one in folder.drafters] == [(one.kind, one.runs) for one in file.drafters]
    assert folder.tokenizer.size == folder.header.sizes["vocabulary"][0] - (12 if name != "gemma3" else 0)
    assert folder.tokenizer.has_template
    assert file.tokenizer.has_template


def test_command(golden_llama: Path) -> None:
    done = subprocess.run([*COMMAND, str(golden_llama / "llama.f16.gguf")], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("llama.f16.gguf: gguf, architecture llama, ")
    assert second.split() == ["runs", "here", "yes"]
    assert "394.3k (394304)" in done.stdout
    assert "v5e x 8" in done.stdout


def test_nothing_there(tmp_path: Path, golden_llama: Path) -> None:
    for path in (tmp_path, golden_llama / "ref.npz"):
        with pytest.raises(CheckpointError):
            inspect_checkpoint(path)
