"""What Gemma 3's checkpoints say in different ways, and what of them is refused. Its figures: `test_golden.py`."""

from collections.abc import Callable
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from flax import nnx

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import gemma3
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.folders import Json, changed_folder

ROPE: dict[str, dict[str, Json]] = {
    "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
}


@pytest.fixture
def golden(goldens: Path) -> Path:
    return goldens / "gemma3"


def load(path: Path) -> Decoder:
    return load_network(open_checkpoint(path), precision=Precision.F32)


def tables(network: Decoder) -> list[np.ndarray]:
    return [np.asarray(table[...]) for table in network.rotary]


def assert_same(left: Decoder, right: Decoder) -> None:
    (one, kept), (other, read) = nnx.split(left), nnx.split(right)
    assert one == other
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(read), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_numbers_of_newer_configurations_are_the_same(golden: Path, tmp_path: Path) -> None:
    """Transformers 5 lists the layers and keeps rotary bases by their kind."""
    plain = {kind: {**one, "rope_type": "default"} for kind, one in ROPE.items()}
    folder = changed_folder(
        golden,
        into=tmp_path,
        config={
            "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
            "rope_parameters": plain,
        },
        without=("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"),
    )

    assert_same(load(folder), load(golden))


def test_scaling_slows_global_layers_down_and_no_others(golden: Path, tmp_path: Path) -> None:
    """All models from 4B on; in the older form and in the newer one."""
    old = changed_folder(golden, into=tmp_path / "old", config={"rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    new = changed_folder(
        golden,
        into=tmp_path / "new",
        config={"rope_parameters": ROPE},
        without=("rope_theta", "rope_local_base_freq", "rope_scaling"),
    )
    whole, local = tables(load(golden))

    for folder in (old, new):
        slowed, same = tables(load(folder))
        np.testing.assert_array_equal(slowed, whole / 8)
        np.testing.assert_array_equal(same, local)


def moved_to(place: str) -> Callable[[str], str]:
    return lambda name: place + name.removeprefix("model")


def test_a_model_that_also_sees_is_read_as_its_text_model(golden: Path, tmp_path: Path) -> None:
    """As it is published today, and as it was; images are left out."""
    for place in ("model.language_model", "language_model.model"):
        folder = changed_folder(
            golden,
            into=tmp_path / place,
            config={"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            renamed=moved_to(place),
            tensors={
                "vision_tower.vision_model.embeddings.patch_embedding.weight": np.ones((2, 2), np.float32),
                "model.multi_modal_projector.mm_soft_emb_norm.weight": np.ones(2, np.float32),
            },
        )

        assert_same(load(folder), load(golden))


def test_published_configurations_leave_out_what_is_usual(golden: Path, tmp_path: Path) -> None:
    """Gemma-3-4B's text_config says six things."""
    folder = changed_folder(
        golden,
        into=tmp_path,
        without=(
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "rms_norm_eps",
            "rope_theta",
            "rope_local_base_freq",
            "query_pre_attn_scalar",
            "sliding_window_pattern",
            "hidden_activation",
        ),
    )
    config = gemma3.read_config(open_checkpoint(folder))

    assert (config.heads, config.kv_heads, config.head_dim, config.context) == (8, 4, 256, 131_072)
    assert (config.rope_base, config.local_rope_base, config.score_scale) == (1e6, 1e4, 1 / 16)
    assert config.sliding == (True, True, True, True, True, False, True)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_activation": "gelu"}, "hidden_activation is gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "sliding layers"),
        ({"layer_types": ["chunked_attention"] * 7}, "chunked_attention"),
        ({"layer_types": ["full_attention"] * 6}, "7 layers"),
        ({"query_pre_attn_scalar": -24.0}, "query_pre_attn_scalar"),
        ({"num_key_value_heads": 3}, "kv heads"),
    ],
)
def test_other_networks_are_refused_by_name(golden: Path, tmp_path: Path, config: dict[str, Json], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        load(changed_folder(golden, into=tmp_path, config=config))


def test_a_final_softcap_is_kept(golden: Path, tmp_path: Path) -> None:
    folder = changed_folder(golden, into=tmp_path, config={"final_logit_softcapping": 30.0})

    assert gemma3.read_config(open_checkpoint(folder)).softcap == 30.0
    assert gemma3.read_config(open_checkpoint(golden)).softcap is None


def write_header(path: Path, *, layers: int, pattern: int | list[bool] | None = None) -> Path:
    """A GGUF file with the numbers of a model that uses no other default, and as many small tensors as layers."""
    writer = gguf.GGUFWriter(path, "gemma3")
    for name, value in (
        ("block_count", layers),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 128),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
        ("attention.sliding_window", 16),
    ):
        writer.add_uint32(f"gemma3.{name}", value)
    writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
    match pattern:
        case int():
            writer.add_uint32("gemma3.attention.sliding_window_pattern", pattern)
        case list():
            writer.add_array("gemma3.attention.sliding_window_pattern", pattern)
    writer.add_tensor("token_embd.weight", np.ones((40, 64), np.float32))
    for layer in range(layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_older_gguf_files_leave_local_base_and_pattern_to_the_reader(tmp_path: Path) -> None:
    config = gemma3.read_config(open_checkpoint(write_header(tmp_path / "old.gguf", layers=7)))

    assert config.local_rope_base == 10_000.0
    assert config.rope_base == 1_000_000.0
    assert config.sliding == (True, True, True, True, True, False, True)
    assert config.score_scale == 16**-0.5


@pytest.mark.parametrize(("pattern", "wanted"), [(2, [True, False, True]), ([False, True, True], [False, True, True])])
def test_newer_gguf_files_say_which_layers_slide(tmp_path: Path, pattern: int | list[bool], wanted: list[bool]) -> None:
    path = write_header(tmp_path / "new.gguf", layers=3, pattern=pattern)

    assert list(gemma3.read_config(open_checkpoint(path)).sliding) == wanted


def test_the_largest_gguf_model_scales_scores_by_its_width(tmp_path: Path) -> None:
    """The 27B one is known by its 62 layers, as in llama.cpp; its configuration says 5376 / 32."""
    config = gemma3.read_config(open_checkpoint(write_header(tmp_path / "large.gguf", layers=62)))

    assert config.score_scale == (64 / 2) ** -0.5


def test_all_that_is_wrong_with_the_tensors_is_said_at_once(golden: Path, tmp_path: Path) -> None:
    folder = changed_folder(
        golden,
        into=tmp_path,
        renamed=lambda name: name.replace("layers.3.mlp.up_proj", "layers.3.mlp.other"),
    )
    with pytest.raises(CheckpointError, match=r"layers\.3\.mlp\.up_proj\.weight is missing.*other.* is not part of it"):
        load_network(open_checkpoint(folder), precision=Precision.F32, kernels=Kernels.XLA)
