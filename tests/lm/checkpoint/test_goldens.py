"""Every golden model opens from both formats, with the same shapes and, where both store the same, the same values."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import half_split, plus_one

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
# llama.cpp's converter turns rows of these around.
PAIRED = ("llama", "llama_rope3", "granite")
WITH_ONE = ("gemma3", "qwen3_5", "qwen3_5_moe")
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
WHOLE = {"token_embd.weight": ("model.embed_tokens.weight", "transformer.wte.weight")} | {
    "output.weight": ("lm_head.weight",),
    "output_norm.weight": ("model.norm.weight", "transformer.ln_f.weight"),
}


def opened(name: str) -> tuple[Checkpoint, Checkpoint]:
    """The GGUF file and the folder."""
    return open_checkpoint(next((GOLDEN / name).glob("*.*.gguf"))), open_checkpoint(GOLDEN / name)


def pairs(gguf: Checkpoint, folder: Checkpoint) -> Iterator[tuple[str, str]]:
    """Names of the tensors that are one and the same."""
    count = next(gguf.require(key, int) for key in gguf.metadata_keys if key.endswith(".block_count"))
    sources = dict(WHOLE)
    for layer in range(count):
        for left, right in LAYER.items():
            for end in ("weight", "bias"):
                wanted = f"layers.{layer}.{right}.{end}"
                sources[f"blk.{layer}.{left}.{end}"] = (f"model.{wanted}", f"model.language_model.{wanted}")
    sources["token_embd.weight"] += ("model.language_model.embed_tokens.weight",)
    for left, candidates in sources.items():
        for right in candidates:
            if left in gguf.shapes and right in folder.shapes:
                yield left, right


@pytest.mark.parametrize("name", [name for name in NAMES if name != "llama_k256"])
def test_both_formats_hold_the_same_values(name: str) -> None:
    gguf, folder = opened(name)
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    compared = 0
    for left, right in pairs(gguf, folder):
        values, wanted = gguf.tensor(left), folder.tensor(right)
        part = left.split(".")[-2]
        if name in PAIRED and part in heads:
            values = half_split(heads=folder.require(heads[part], int))(values)
        if name in WITH_ONE and part.endswith("norm"):
            wanted = plus_one(wanted)
        assert values.tobytes() == wanted.tobytes(), (left, right)
        compared += 1

    assert compared >= min(3, len(folder.shapes) // 3)
    assert gguf.require("general.architecture", str) == gguf.architecture


@pytest.mark.parametrize("name", NAMES)
def test_every_folder_is_what_the_library_reads(name: str) -> None:
    folder = open_checkpoint(GOLDEN / name)
    library = safetensors.numpy.load_file(GOLDEN / name / "model.safetensors")

    assert folder.shapes == {key: values.shape for key, values in library.items()}
    assert set(folder.types.values()) <= {"BF16", "F32"}
    assert folder.require("vocab_size", int) in (500, 512)
    for key, values in library.items():
        np.testing.assert_array_equal(folder.tensor(key), values.astype(np.float32), strict=True)
        np.testing.assert_array_equal(folder.tensor(key, part=slice(1, 2)), values[1:2].astype(np.float32))


def test_the_list_of_models_is_whole() -> None:
    assert len(NAMES) >= 17
