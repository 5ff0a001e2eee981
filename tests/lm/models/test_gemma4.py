"""What Gemma 4's checkpoints say in different ways, and what of them is refused. Its figures: `test_golden.py`."""

from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from flax import nnx

from deployments.lm.cache.layout import KeysAndValues
from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.models import gemma4
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.folders import Json, changed_folder


def load(path: Path) -> Decoder:
    return load_network(open_checkpoint(path), precision=Precision.F32)


def assert_same(left: Decoder, right: Decoder) -> None:
    (one, kept), (other, read) = nnx.split(left), nnx.split(right)
    assert one == other
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(read), strict=True):
        np.testing.assert_array_equal(a, b)


def test_layers_that_borrow_keep_nothing_of_their_own(goldens: Path) -> None:
    """The last three of six see what the last layer of their own kind wrote before them."""
    config = gemma4.read_config(open_checkpoint(goldens / "gemma4_e"))

    assert config.layout == (
        KeysAndValues(kv_heads=1, head_dim=16),
        KeysAndValues(kv_heads=1, head_dim=16),
        KeysAndValues(kv_heads=1, head_dim=32),
    )
    assert [shape.entry for shape in config.shapes] == [0, 1, 2, 1, 1, 2]
    assert [shape.feed_forward for shape in config.shapes] == [96, 96, 96, 192, 192, 192]


def test_global_layers_have_heads_of_their_own(goldens: Path) -> None:
    config = gemma4.read_config(open_checkpoint(goldens / "gemma4_dense"))

    assert [(one.kv_heads, one.head_dim, one.keys_are_values) for one in config.shapes] == [
        (2, 16, False),
        (2, 16, False),
        (1, 32, True),
        (1, 32, True),
    ]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gemma4_e", {str(layer): {"head_dim": 32} for layer in (2, 5)}),
        ("gemma4_dense", {str(layer): {"head_dim": 32, "num_key_value_heads": 1} for layer in (2, 3)}),
        ("gemma4_moe", {str(layer): {"head_dim": 32, "num_key_value_heads": 1} for layer in (1, 3)}),
    ],
)
def test_the_numbers_of_newer_configurations_are_the_same(
    goldens: Path, tmp_path: Path, name: str, layers: dict[str, Json]
) -> None:
    """Transformers 5 says by their numbers which layers differ."""
    folder = changed_folder(
        goldens / name,
        into=tmp_path,
        config={"per_layer_config": layers},
        without=("global_head_dim", "num_global_key_value_heads"),
    )

    assert_same(load(folder), load(goldens / name))


def test_a_model_that_also_sees_and_hears_is_read_as_its_text_model(goldens: Path, tmp_path: Path) -> None:
    folder = changed_folder(
        goldens / "gemma4_e",
        into=tmp_path,
        config={
            "model_type": "gemma4",
            "text_config": {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"},
        },
        renamed=lambda name: "model.language_model" + name.removeprefix("model"),
        tensors={
            f"model.{part}.weight": np.ones((2, 2), np.float32)
            for part in (
                "vision_tower.patch_embedder.input_proj",
                "audio_tower.output_proj",
                "embed_vision.embedding_projection",
                "embed_audio.embedding_projection",
            )
        },
    )

    assert_same(load(folder), load(goldens / "gemma4_e"))


def test_keys_and_values_that_nobody_reads_may_be_there(goldens: Path, tmp_path: Path) -> None:
    """Some published checkpoints hold those of the layers that borrow."""
    unread = {
        f"model.layers.4.self_attn.{name}.weight": np.ones(shape, np.float32)
        for name, shape in (("k_proj", (16, 64)), ("v_proj", (16, 64)), ("k_norm", (16,)))
    }
    folder = changed_folder(goldens / "gemma4_e", into=tmp_path, tensors=unread)

    assert_same(load(folder), load(goldens / "gemma4_e"))


@pytest.mark.parametrize(
    ("name", "config", "named"),
    [
        ("gemma4_dense", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("gemma4_dense", {"attention_bias": True}, "attention_bias"),
        ("gemma4_dense", {"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4"),
        ("gemma4_dense", {"num_kv_shared_layers": 2}, "layer 2 has no layer before it"),
        ("gemma4_dense", {"num_global_key_value_heads": 3}, "kv heads"),
        ("gemma4_dense", {"num_global_key_value_heads": 0}, "0 kv heads"),
        ("gemma4_dense", {"global_head_dim": 31}, "odd"),
        (
            "gemma4_dense",
            {"per_layer_config": {"2": {"head_dim": 32}, "3": {"head_dim": 64}}},
            "differ in head_dim",
        ),
        (
            "gemma4_dense",
            {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
            "longrope",
        ),
        ("gemma4_moe", {"top_k_experts": 7}, "top_k_experts is 7"),
        ("gemma4_moe", {"num_experts": 1 << 30}, "num_experts"),
        ("gemma4_moe", {"enable_moe_block": False}, "experts.down_proj is not part of it"),
        ("gemma4_e", {"hidden_size_per_layer_input": 0}, "embed_tokens_per_layer.weight is not part of it"),
    ],
)
def test_other_networks_are_refused_by_name(
    goldens: Path, tmp_path: Path, name: str, config: dict[str, Json], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load(changed_folder(goldens / name, into=tmp_path, config=config))


def test_values_are_missing_where_only_some_global_layers_have_none(goldens: Path, tmp_path: Path) -> None:
    """A GGUF file says that keys are values by having no values in any layer with full attention."""
    path = tmp_path / "some.gguf"
    copy_with(goldens / "gemma4_dense" / "gemma4_dense.f16.gguf", path, extra={"blk.2.attn_v.weight": (32, 64)})

    with pytest.raises(CheckpointError, match=r"blk\.3\.attn_v\.weight is missing"):
        load(path)


def copy_with(golden: Path, path: Path, *, extra: dict[str, tuple[int, ...]]) -> None:
    reader = gguf.GGUFReader(golden)
    writer = gguf.GGUFWriter(path, "gemma4")
    for name, field in reader.fields.items():
        if name.startswith("gemma4."):
            kind = field.types[0]
            value = field.contents()
            writer.add_key_value(name, value, kind, field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, shape in extra.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
