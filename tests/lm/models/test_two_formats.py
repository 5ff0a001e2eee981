"""The real model as safetensors, written from its GGUF's own values, is the same network bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.quant.linear import Precision
from tests.verifier.forcing import forced_logits, network, programs_for

TOKENS = tuple(range(100, 40_000, 1_000))
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.mark.slow
def test_smollm2_as_safetensors_equals_its_gguf(smollm2_path: Path, tmp_path: Path) -> None:
    file = GgufFile(smollm2_path)
    write_config(file, folder=tmp_path)
    write_tensors(file, folder=tmp_path)

    from_gguf, from_safetensors = (
        forced_logits(
            programs_for(
                network(path, precision=Precision.INT8), precision=Precision.INT8, rows=64, context=64, page_size=64
            ),
            TOKENS,
        )
        for path in (str(smollm2_path), str(tmp_path))
    )

    np.testing.assert_array_equal(from_gguf.view(np.int32), from_safetensors.view(np.int32))


def write_config(file: GgufFile, *, folder: Path) -> None:
    """As the model's own config.json has them."""

    def integer(key: str) -> int:
        return file.require(f"llama.{key}", int)

    config = {
        "model_type": "llama",
        "num_hidden_layers": integer("block_count"),
        "hidden_size": integer("embedding_length"),
        "num_attention_heads": integer("attention.head_count"),
        "num_key_value_heads": integer("attention.head_count_kv"),
        "intermediate_size": integer("feed_forward_length"),
        "max_position_embeddings": integer("context_length"),
        "rms_norm_eps": file.require("llama.attention.layer_norm_rms_epsilon", float),
        "rope_theta": file.require("llama.rope.freq_base", float),
        "vocab_size": file.shapes["token_embd.weight"][0],
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_tensors(file: GgufFile, *, folder: Path) -> None:
    """In two shards, as large models are."""
    heads = {"attn_q": file.require("llama.attention.head_count", int)}
    heads["attn_k"] = file.require("llama.attention.head_count_kv", int)
    outer = {
        "model.embed_tokens.weight": file.tensor("token_embd.weight"),
        "model.norm.weight": file.tensor("output_norm.weight"),
    }
    layers = {}
    for number in range(file.require("llama.block_count", int)):
        for own, theirs in LAYER.items():
            tensor = file.tensor(f"blk.{number}.{own}.weight")
            layers[f"model.layers.{number}.{theirs}.weight"] = (
                halves_from_pairs(tensor, heads=heads[own]) if own in heads else tensor
            )
    shards = {"model-00001-of-00002.safetensors": outer, "model-00002-of-00002.safetensors": layers}
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
    index = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def halves_from_pairs(rows: np.ndarray, *, heads: int) -> np.ndarray:
    """Of each head first the even rows, then the odd ones."""
    per_head = rows.reshape(heads, -1, rows.shape[-1])
    return np.concatenate([per_head[:, 0::2], per_head[:, 1::2]], axis=1).reshape(rows.shape)
