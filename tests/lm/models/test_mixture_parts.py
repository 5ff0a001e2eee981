"""The ways in which experts are stored and their numbers told. Figures of the families: `test_golden.py`."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.models import qwen2moe, qwen3moe
from deployments.lm.models.load import load_network
from deployments.lm.models.sparse import SparseConfig
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.files import Value, changed_file
from tests.lm.models.folders import Json, changed_folder

COUNT = {"qwen2_moe": 6, "qwen3_moe": 8}
FAMILIES = tuple(COUNT)


def load(path: Path) -> Decoder:
    return load_network(open_checkpoint(path), precision=Precision.F32)


def assert_same(left: Decoder, right: Decoder) -> None:
    kept, read = (jax.tree.leaves(nnx.state(network)) for network in (left, right))
    for a, b in zip(kept, read, strict=True):
        np.testing.assert_array_equal(a, b)


def fuse(folder: Path, *, experts: int) -> None:
    """All experts of a layer in two tensors, as transformers 5 writes them."""
    path = folder / "model.safetensors"
    stored = load_file(path)
    for layer in range(4):
        at = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            [stored.pop(f"{at}.{number}.{name}_proj.weight") for number in range(experts)]
            for name in ("gate", "up", "down")
        )
        stored[f"{at}.gate_up_proj"] = np.stack([np.concatenate(both) for both in zip(gates, ups, strict=True)])
        stored[f"{at}.down_proj"] = np.stack(downs)
    save_file(stored, path)


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_may_be_stored_together(goldens: Path, tmp_path: Path, family: str) -> None:
    folder = changed_folder(goldens / family, into=tmp_path)
    fuse(folder, experts=COUNT[family])

    assert_same(load(folder), load(goldens / family))


def test_gguf_files_may_store_gates_and_other_halves_together(goldens: Path, tmp_path: Path) -> None:
    golden = goldens / "qwen3_moe" / "qwen3_moe.f16.gguf"
    file = open_checkpoint(golden)
    tensors: dict[str, np.ndarray | None] = {}
    for layer in range(4):
        names = [f"blk.{layer}.ffn_{half}_exps.weight" for half in ("gate", "up")]
        tensors |= dict.fromkeys(names)
        tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([file.tensor(n) for n in names], axis=1)

    assert_same(load(changed_file(golden, into=tmp_path / "fused.gguf", tensors=tensors)), load(golden))


def test_the_shared_experts_gate_may_be_a_vector(goldens: Path, tmp_path: Path) -> None:
    golden = goldens / "qwen2_moe" / "qwen2_moe.f16.gguf"
    names = [f"blk.{layer}.ffn_gate_inp_shexp.weight" for layer in range(4)]
    tensors: dict[str, np.ndarray | None] = {name: open_checkpoint(golden).tensor(name).reshape(-1) for name in names}

    assert_same(load(changed_file(golden, into=tmp_path / "flat.gguf", tensors=tensors)), load(golden))


def dense(folder: Path, *, layer: int) -> None:
    """Gives a layer a dense feed-forward in place of its experts."""
    path = folder / "model.safetensors"
    stored = {k: v for k, v in load_file(path).items() if not k.startswith(f"model.layers.{layer}.mlp.")}
    like = next(iter(stored.values())).dtype
    for name, shape in (("gate", (128, 64)), ("up", (128, 64)), ("down", (64, 128))):
        stored[f"model.layers.{layer}.mlp.{name}_proj.weight"] = np.ones(shape, like)
    save_file(stored, path)


@pytest.mark.parametrize(("config", "layers"), [({"mlp_only_layers": [1]}, (1,)), ({"decoder_sparse_step": 2}, (0, 2))])
def test_some_layers_may_be_dense(
    goldens: Path, tmp_path: Path, config: dict[str, Json], layers: tuple[int, ...]
) -> None:
    folder = changed_folder(goldens / "qwen3_moe", into=tmp_path, config=config)
    with pytest.raises(CheckpointError, match=rf"layers\.{layers[0]}\.mlp\.gate_proj\.weight is missing"):
        load(folder)
    for layer in layers:
        dense(folder, layer=layer)
    found = load(folder).config

    assert isinstance(found, SparseConfig)
    assert found.has_experts == tuple(layer not in layers for layer in range(4))


def test_tensors_of_gguf_files_say_which_layers_are_dense(goldens: Path, tmp_path: Path) -> None:
    names = ("gate_inp", "gate_exps", "up_exps", "down_exps")
    tensors: dict[str, np.ndarray | None] = {f"blk.2.ffn_{name}.weight": None for name in names}
    for name, shape in (("gate", (128, 64)), ("up", (128, 64)), ("down", (64, 128))):
        tensors[f"blk.2.ffn_{name}.weight"] = np.ones(shape)
    path = changed_file(goldens / "qwen3_moe" / "qwen3_moe.f16.gguf", into=tmp_path / "x.gguf", tensors=tensors)
    found = load(path).config

    assert isinstance(found, SparseConfig)
    assert found.has_experts == (True, True, False, True)


def test_whether_weights_add_up_to_one_follows_the_family_where_nothing_is_said(goldens: Path, tmp_path: Path) -> None:
    for family, read, in_gguf in (("qwen2_moe", qwen2moe, False), ("qwen3_moe", qwen3moe, True)):
        silent = changed_folder(goldens / family, into=tmp_path / family, without=("norm_topk_prob",))
        assert read.read_config(open_checkpoint(silent)).mixture.routing.normalised is False
        file = goldens / family / f"{family}.f16.gguf"
        assert read.read_config(open_checkpoint(file)).mixture.routing.normalised is in_gguf


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"num_experts": 0}, "num_experts is 0"),
        ({"num_experts": 2**40}, "num_experts is "),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size is -1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"n_group": 4}, "sets n_group"),
    ],
)
def test_absurd_numbers_are_refused(goldens: Path, tmp_path: Path, config: dict[str, Json], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        load(changed_folder(goldens / "qwen3_moe", into=tmp_path, config=config))


def test_attention_without_biases_is_refused(goldens: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="sets qkv_bias to false"):
        load(changed_folder(goldens / "qwen2_moe", into=tmp_path, config={"qkv_bias": False}))


@pytest.mark.parametrize(
    ("name", "value"), [("expert_gating_func", 2), ("expert_weights_scale", 2.5), ("expert_group_count", 8)]
)
def test_other_routers_are_refused_by_name(goldens: Path, tmp_path: Path, name: str, value: Value) -> None:
    golden = goldens / "qwen3_moe" / "qwen3_moe.f16.gguf"
    with pytest.raises(CheckpointError, match=f"sets qwen3moe.{name}"):
        load(changed_file(golden, into=tmp_path / "x.gguf", numbers={name: value}))


def test_a_fault_of_a_tensor_of_all_experts_is_said_once(goldens: Path, tmp_path: Path) -> None:
    golden = goldens / "qwen3_moe" / "qwen3_moe.f16.gguf"
    path = changed_file(golden, into=tmp_path / "x.gguf", tensors={"blk.1.ffn_up_exps.weight": np.ones((8, 47, 64))})
    with pytest.raises(CheckpointError) as caught:
        load(path)

    assert str(caught.value).count("blk.1.ffn_up_exps.weight has shape (8, 47, 64), expected (8, 48, 64)") == 1
