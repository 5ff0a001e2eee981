"""What the families that differ from llama in little refuse, and what configurations may say in other ways."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.models.load import load_network, read_config
from deployments.lm.quant.linear import FloatLinear, Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.folders import Json, changed_folder

FAMILIES = ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "granite", "exaone", "exaone4")
# What no configuration may ask for, by key: of which family, and with which value.
ASKED: dict[str, tuple[tuple[str, Json], ...]] = {
    "hidden_act": tuple((family, "gelu") for family in FAMILIES if family != "exaone"),
    "activation_function": (("exaone", "gelu_new"),),
    "attention_bias": tuple((family, True) for family in FAMILIES),
    "use_sliding_window": tuple((family, True) for family in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")),
    "partial_rotary_factor": tuple((family, 0.5) for family in FAMILIES),
    "mlp_bias": (("llama", True), ("granite", True)),
    "num_local_experts": (("llama", 8),),
    "residual_multiplier": (("llama", 0.2),),
    "final_logit_softcapping": (("qwen3", 30.0),),
    "layer_types": (("qwen2", ["full_attention"] * 3 + ["sliding_attention"]),),
    "rope_parameters": (("llama", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),),
}
REFUSED = [(family, name, value) for name, asked in ASKED.items() for family, value in asked]
SCALINGS = ("yarn", "longrope", "dynamic")


def load(path: Path) -> Decoder:
    return load_network(open_checkpoint(path), precision=Precision.F32)


def assert_same(left: Decoder, right: Decoder) -> None:
    (one, kept), (other, read) = nnx.split(left), nnx.split(right)
    assert one == other
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(read), strict=True):
        np.testing.assert_array_equal(a, b)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("family", "name", "value"), REFUSED)
def test_options_that_are_not_computed_are_refused_by_name(
    goldens: Path, tmp_path: Path, family: str, name: str, value: Json
) -> None:
    text = refusal(changed_folder(goldens / family, into=tmp_path, config={name: value}))

    assert f"sets {name}" in text
    assert text.endswith(", which this version does not run")


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_rope_scaling_is_refused_by_name(goldens: Path, tmp_path: Path, family: str, kind: str) -> None:
    config: dict[str, Json] = {"rope_scaling": {"rope_type": kind, "factor": 4.0}}

    assert f"rope scaling '{kind}'" in refusal(changed_folder(goldens / family, into=tmp_path, config=config))


@pytest.mark.parametrize("family", ["llama_rope3", "exaone4"])
def test_the_numbers_of_newer_configurations_are_the_same(goldens: Path, tmp_path: Path, family: str) -> None:
    """Transformers 5 keeps the rotary base among the parameters of its scaling, and lists the layers."""
    config = open_checkpoint(goldens / family)
    parameters: dict[str, Json] = {
        key: config.require(f"rope_scaling.{key}", float)
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    }
    folder = changed_folder(
        goldens / family,
        into=tmp_path,
        config={
            "rope_parameters": {
                **parameters,
                "rope_type": "llama3",
                "rope_theta": config.require("rope_theta", float),
            },
            "layer_types": ["full_attention"] * config.require("num_hidden_layers", int),
        },
        without=("rope_theta", "rope_scaling"),
    )

    assert_same(load(folder), load(goldens / family))


def test_options_that_are_off_are_no_matter(goldens: Path, tmp_path: Path) -> None:
    off: dict[str, Json] = {
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 16,
        "rope_scaling": {"rope_type": "default"},
        "partial_rotary_factor": 1.0,
        "embedding_multiplier": 1.0,
        "layer_types": ["full_attention"] * 4,
    }
    folder = changed_folder(goldens / "qwen2", into=tmp_path, config=off)

    assert read_config(open_checkpoint(folder)) == read_config(open_checkpoint(goldens / "qwen2"))


def test_a_tied_head_is_the_embedding_whatever_else_is_stored(goldens: Path, tmp_path: Path) -> None:
    other = np.zeros((512, 64), np.float32)
    folder = changed_folder(goldens / "qwen2", into=tmp_path, tensors={"lm_head.weight": other})
    network = load(folder)

    assert isinstance(network.head, FloatLinear)
    np.testing.assert_array_equal(network.head.weight[...], network.embedding.table[...])


def test_a_head_that_is_promised_must_be_there(goldens: Path, tmp_path: Path) -> None:
    folder = changed_folder(goldens / "qwen2", into=tmp_path, config={"tie_word_embeddings": False})

    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load(folder)
