"""Qwen3.5's numbers and tensors: what a configuration may say beside them, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.load import load_network, read_config
from deployments.lm.quant.linear import FloatLinear, Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.files import changed_file
from tests.lm.models.folders import Json, changed_folder

FAMILIES = ("qwen3_5", "qwen3_5_moe")


@pytest.mark.parametrize("family", FAMILIES)
def test_options_that_are_off_are_no_matter(goldens: Path, tmp_path: Path, family: str) -> None:
    off: dict[str, Json] = {"mlp_only_layers": [], "attention_bias": False, "attn_output_gate": True}

    found = read_config(open_checkpoint(changed_folder(goldens / family, into=tmp_path, config=off)))

    assert found == read_config(open_checkpoint(goldens / family))


@pytest.mark.parametrize(
    ("option", "value"), [("mlp_only_layers", ["0"]), ("attention_bias", True), ("attn_logit_softcapping", 30.0)]
)
def test_options_that_are_not_computed_are_refused_by_name(
    goldens: Path, tmp_path: Path, option: str, value: Json
) -> None:
    folder = changed_folder(goldens / "qwen3_5", into=tmp_path, config={option: value})

    with pytest.raises(CheckpointError, match=f"sets {option}, which this version does not run"):
        read_config(open_checkpoint(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_its_own_must_be_there(goldens: Path, tmp_path: Path, family: str) -> None:
    """The embedding's table in its place would be another network."""
    folder = changed_folder(goldens / family, into=tmp_path, config={"tie_word_embeddings": False})
    stored = load_file(folder / "model.safetensors")
    save_file({name: value for name, value in stored.items() if "lm_head" not in name}, folder / "model.safetensors")

    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load_network(open_checkpoint(folder), precision=Precision.F32)


@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16])
def test_a_table_that_is_embedding_and_head_lies_in_memory_once(goldens: Path, precision: Precision) -> None:
    network = load_network(open_checkpoint(goldens / "qwen3"), precision=precision)

    head = network.head
    assert isinstance(head, FloatLinear)
    assert head.weight[...] is network.embedding.table[...]


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_file_that_counts_fewer_layers_is_no_shorter_network(goldens: Path, tmp_path: Path, count: int) -> None:
    """The layers left over are none that draft: the file says how many those are."""
    golden = goldens / "qwen3_5" / "qwen3_5.f16.gguf"
    path = changed_file(golden, into=tmp_path / "short.gguf", numbers={"block_count": count})

    with pytest.raises(CheckpointError, match=r"blk\.\d+\.\S+ is (missing|not part of it)"):
        load_network(open_checkpoint(path), precision=Precision.F32)


def test_a_weight_that_is_not_finite_is_named(goldens: Path, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    spoilt = load_file(goldens / "qwen3" / "model.safetensors")[name].copy()
    spoilt[3, 5] = np.nan
    folder = changed_folder(goldens / "qwen3", into=tmp_path, tensors={name: spoilt})

    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.up_proj\.weight holds values that are not finite"):
        load_network(open_checkpoint(folder), precision=Precision.BF16)
