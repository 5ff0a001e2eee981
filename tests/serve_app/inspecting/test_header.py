import json
from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from serve_app.inspecting.header import read_header

# As tests/data/golden was made: layers, width, heads, head width, parameters of the whole checkpoint.
MADE = {
    "llama": (8, 64, 8, 8, 394_304),
    "qwen2": (4, 64, 4, 16, 218_176),
    "qwen3": (8, 64, 4, 32, 476_736),
    "granite": (4, 64, 4, 16, 205_376),
    "exaone": (4, 64, 4, 16, 250_432),
    "exaone4_hybrid": (64, 32, 4, 8, 529_440),
    "qwen3_5": (8, 64, 4, 32, 527_056),
    "qwen3_moe": (4, 64, 4, 24, 424_704),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_golden_checkpoints(goldens: Path, name: str) -> None:
    layers, width, heads, head_dim, parameters = MADE[name]
    gguf = next((goldens / name).glob("*.gguf"))

    for path in (goldens / name, gguf):
        header = read_header(open_checkpoint(path))

        assert header.sizes["layers"] == (layers,)
        assert header.sizes["width"] == (width,)
        assert header.sizes["heads"] == (heads,)
        assert header.sizes.get("head_dim", (head_dim,)) == (head_dim,)
        assert header.parameters + header.other_parameters == parameters
        assert header.mtp_tensors == (15 if name == "qwen3_5" else 0)
        assert sum(kind.tensors for kind in header.types) == len(open_checkpoint(path).shapes)


def test_layers_that_differ(goldens: Path) -> None:
    header = read_header(open_checkpoint(goldens / "gemma4_e" / "gemma4_e.f16.gguf"))

    assert header.sizes["feed_forward"] == (96, 192)


def test_bytes_of_quantised_types(goldens: Path) -> None:
    path = goldens / "llama_k256" / "llama_k256.Q4_K_M.gguf"

    header = read_header(open_checkpoint(path))

    manifest = json.loads((goldens / "llama_k256" / "manifest.json").read_text())
    assert {kind.name: kind.tensors for kind in header.types} == {"F32": 5, "Q6_K": 3, "Q4_K": 12}
    assert header.file_bytes == path.stat().st_size
    # Tensors are aligned to 32 bytes, after metadata of 10 to 40 kB.
    assert manifest
    assert 10_000 < header.file_bytes - sum(kind.bytes for kind in header.types) < 60_000


def test_what_sees_is_not_loaded(goldens: Path) -> None:
    header = read_header(open_checkpoint(goldens / "qwen3_5_moe"))

    assert header.sizes["experts"] == (8,)
    assert header.other_parameters > 0
    assert header.mtp_tensors > 0
