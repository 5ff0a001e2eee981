"""Exactness over several devices: 1, 2, 4 and 8 virtual ones, each number compared with itself and, in int8, with one.

Sums of integers do not depend on who adds what, so int8 replies are the same on any number of devices. Sums of floats
do: there only speculation, batching and rungs must not change a bit, on each number of devices by itself.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float32
from safetensors.numpy import save_file

from tests.verifier.several_devices import Job, Outcome, outcomes

DRAFTERS = ("oracle", "random", "ngram-3")
# What has 9 and 3 heads as SmolLM2 does: on 8 devices every key head is on two, one of which has a query less.
_WIDTH, _HEADS, _KV_HEADS, _HEAD_DIM, _INNER, _LAYERS, _VOCABULARY = 144, 9, 3, 16, 200, 2, 512


@pytest.fixture(scope="module")
def nine_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two layers with 9 query heads, 3 key heads and a table that is embedding and head."""
    folder = tmp_path_factory.mktemp("nine-heads")
    random = np.random.default_rng(9)

    def weight(*shape: int) -> Float32[np.ndarray, "..."]:
        return np.asarray(random.normal(size=shape) / np.sqrt(shape[-1]), np.float32)

    tensors = {
        "model.embed_tokens.weight": weight(_VOCABULARY, _WIDTH) * 6,
        "model.norm.weight": np.ones(_WIDTH, np.float32),
    }
    for number in range(_LAYERS):
        at = f"model.layers.{number}"
        tensors |= {
            f"{at}.input_layernorm.weight": np.ones(_WIDTH, np.float32),
            f"{at}.post_attention_layernorm.weight": np.ones(_WIDTH, np.float32),
            f"{at}.self_attn.q_proj.weight": weight(_HEADS * _HEAD_DIM, _WIDTH) * 2,
            f"{at}.self_attn.k_proj.weight": weight(_KV_HEADS * _HEAD_DIM, _WIDTH) * 2,
            f"{at}.self_attn.v_proj.weight": weight(_KV_HEADS * _HEAD_DIM, _WIDTH),
            f"{at}.self_attn.o_proj.weight": weight(_WIDTH, _HEADS * _HEAD_DIM),
            f"{at}.mlp.gate_proj.weight": weight(_INNER, _WIDTH) * 2,
            f"{at}.mlp.up_proj.weight": weight(_INNER, _WIDTH),
            f"{at}.mlp.down_proj.weight": weight(_WIDTH, _INNER),
        }
    save_file(tensors, folder / "model.safetensors")
    numbers = {
        "model_type": "llama",
        "hidden_size": _WIDTH,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": _VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(numbers))
    return folder


def check_exact(found: dict[int, Outcome]) -> None:
    """On every number of devices all rungs serve, and replies are the plain ones whatever is drafted."""
    for devices, outcome in found.items():
        assert outcome.devices == devices
        assert outcome.kernels == "xla"
        assert outcome.refused == {}, devices
        for drafter, replies in outcome.replies.items():
            for request, reply in replies.items():
                assert reply == outcome.replies["plain"][request], (devices, drafter, request)
        if "oracle" in outcome.replies:
            assert outcome.accepted["oracle"] > 50, devices


def check_same_as_one(found: dict[int, Outcome]) -> None:
    """Replies are those of one device: tokens, endings and log-probabilities."""
    for devices, outcome in found.items():
        for request, reply in outcome.replies["plain"].items():
            assert reply == found[1].replies["plain"][request], (devices, request)


def test_int8_replies_are_those_of_one_device(golden_llama: Path, nine_heads: Path, tmp_path: Path) -> None:
    """With heads and widths that do not divide; four devices are left to the slow tests."""
    job = Job(model=str(nine_heads), golden=str(golden_llama), precision="int8", devices=(1, 2, 8), drafters=DRAFTERS)
    found = outcomes(job, folder=tmp_path)
    check_exact(found)
    check_same_as_one(found)
    assert len(set(found[1].replies["plain"].values())) > 8, "replies that are all alike prove little"


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(1, 2), pytest.param((1, 4, 8), marks=pytest.mark.exhaustive)])
def test_several_windows_in_one_call_of_several_devices(
    golden_llama_rope3: Path, tmp_path: Path, devices: tuple[int, ...]
) -> None:
    """The drafter runs on every device alike; replies are those of windows of their own, and of one device."""
    job = Job(
        model=str(golden_llama_rope3 / "llama_rope3.f32.gguf"),
        golden=str(golden_llama_rope3.parent / "llama"),
        precision="int8",
        devices=devices,
        drafters=(),
        ladder=(8, 16),
        is_shaped=False,
        tokens=96,
        rounds=4,
    )
    found = outcomes(job, folder=tmp_path)
    check_exact(found)
    check_same_as_one(found)
    for outcome in found.values():
        assert outcome.joined > 40
        assert outcome.accepted["chip"] > 20


@pytest.mark.slow
def test_floats_are_exact_on_each_number_of_devices(golden_llama_rope3: Path, tmp_path: Path) -> None:
    model = golden_llama_rope3 / "llama_rope3.f32.gguf"
    golden = golden_llama_rope3.parent / "llama"
    job = Job(
        model=str(model),
        golden=str(golden),
        precision="f32",
        devices=(2,),
        drafters=("oracle",),
        ladder=(8,),
        is_shaped=False,
    )
    check_exact(outcomes(job, folder=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "qwen3_5",
        *(
            pytest.param(family, marks=pytest.mark.exhaustive)
            for family in ("llama", "qwen2", "qwen3", "granite", "exaone", "exaone4", "gemma3")
        ),
    ],
)
def test_int8_families(family: str, goldens: Path, tmp_path: Path) -> None:
    """Every family that is split."""
    job = Job(
        model=str(next((goldens / family).glob("*.gguf"))),
        golden=str(goldens / family),
        precision="int8",
        devices=(1, 2, 4, 8),
        drafters=DRAFTERS,
        ladder=(8, 32),
        # Of a vocabulary of 512 tokens.
        is_shaped=family != "gemma3",
    )
    found = outcomes(job, folder=tmp_path)
    check_exact(found)
    check_same_as_one(found)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["f32", "bf16", "int8-plain"])
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_other_precisions(family: str, precision: str, goldens: Path, golden_llama: Path, tmp_path: Path) -> None:
    model = str(next((goldens / family).glob("*.gguf")))
    job = Job(
        model=model, golden=str(golden_llama), precision=precision, devices=(1, 2, 4, 8), drafters=DRAFTERS, tokens=48
    )
    found = outcomes(job, folder=tmp_path)
    check_exact(found)
    if precision == "int8-plain":
        check_same_as_one(found)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.model
def test_smollm2(smollm2_path: Path, golden_llama: Path, tmp_path: Path) -> None:
    """The real model, which has 9 and 3 heads."""
    job = Job(
        model=str(smollm2_path),
        golden=str(golden_llama),
        precision="int8",
        devices=(1, 2, 8),
        drafters=("oracle", "ngram-3"),
        is_shaped=False,
        tokens=12,
    )
    found = outcomes(job, folder=tmp_path)
    check_exact(found)
    check_same_as_one(found)
