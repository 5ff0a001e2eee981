"""Llama's files, whole and faulty, quantised and in other precisions. Its figures in f32: `test_golden.py`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models.load import load_network, read_config
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from deployments.verifier.programs import Programs
from tests.lm.models.files import Value, changed_file
from tests.lm.models.folders import Json, changed_folder
from tests.verifier.forcing import forced_logits, network, programs_for

F32_TOLERANCE = 2e-3
# Twice what transformers itself differs by between bf16 and f32, and its largest margin that flipped.
BF16_MEAN, BF16_MARGIN = 2 * 0.111, 0.26

type Change = Callable[..., Path]


@pytest.fixture
def change(golden_llama_rope3: Path, tmp_path: Path) -> Change:
    """Writes the small golden file with other numbers and tensors."""
    return lambda **changes: changed_file(
        golden_llama_rope3 / "llama_rope3.f32.gguf", into=tmp_path / "small.gguf", **changes
    )


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_network(open_checkpoint(path), precision=Precision.F32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def programs(path: Path, *, precision: Precision) -> Programs:
    return programs_for(
        network(str(path), precision=precision), precision=precision, rows=64, context=192, page_size=32
    )


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_quantised_files_are_the_peers(golden_llama_k256: Path, kind: str) -> None:
    found = programs(golden_llama_k256 / f"llama_k256.{kind}.gguf", precision=Precision.F32)
    compared = 0
    with (
        np.load(golden_llama_k256 / "prompts.npz") as prompts,
        np.load(golden_llama_k256 / f"llama_k256.{kind}.ref.npz") as wanted,
    ):
        for number in range(3):
            prompt, greedy = prompts[f"prompt_{number}"], wanted[f"greedy_{number}"]
            logits = forced_logits(found, [*prompt.tolist(), *greedy.tolist()])
            rows = wanted[f"logits_{number}"]
            assert np.abs(logits[len(prompt) - len(rows) : len(prompt)] - rows).max() < F32_TOLERANCE
            np.testing.assert_array_equal(logits[len(prompt) - 1 : -1].argmax(axis=-1), greedy)
            compared += len(rows) + len(greedy)

    assert compared == 151


def test_bf16_is_as_close_as_the_peers_bf16(golden_llama: Path) -> None:
    found = programs(golden_llama / "llama.f16.gguf", precision=Precision.BF16)
    with np.load(golden_llama / "ref.npz") as wanted:
        for number in range(3):
            logits = forced_logits(found, wanted[f"prompt_{number}"].tolist())
            rows = wanted[f"logits_{number}"]
            assert np.abs(logits - rows).mean() < BF16_MEAN
            second, first = np.sort(rows, axis=-1)[:, -2:].T
            clear = first - second > BF16_MARGIN
            assert clear.sum() >= len(rows) // 2
            np.testing.assert_array_equal(logits.argmax(axis=-1)[clear], rows.argmax(axis=-1)[clear])


def test_int8_stays_within_the_bf16_tolerance_and_plain_int8_costs_more(golden_llama: Path) -> None:
    with np.load(golden_llama / "ref.npz") as wanted:
        prompt, rows = wanted["prompt_2"].tolist(), wanted["logits_2"]
    two, one = (
        float(
            np.abs(forced_logits(programs(golden_llama / "llama.f16.gguf", precision=precision), prompt) - rows).mean()
        )
        for precision in (Precision.INT8, Precision.INT8_PLAIN)
    )

    assert 0 < two < BF16_MEAN
    assert one > 1.25 * two


def test_int8_weights_with_bf16_activations_lie_between(golden_llama: Path) -> None:
    """They lose what int8 weights lose and what bf16 activations do."""
    with np.load(golden_llama / "ref.npz") as wanted:
        prompt, rows = wanted["prompt_2"].tolist(), wanted["logits_2"]
    plain, mixed, exact = (
        float(
            np.abs(forced_logits(programs(golden_llama / "llama.f16.gguf", precision=precision), prompt) - rows).mean()
        )
        for precision in (Precision.INT8_PLAIN, Precision.W8A16, Precision.BF16)
    )

    assert exact < mixed < min(plain, BF16_MEAN)


def test_a_whole_file_becomes_a_network(change: Change) -> None:
    for precision in Precision:
        config = load_network(open_checkpoint(change()), precision=precision).config
        assert (config.layers, config.width, config.vocabulary, config.context) == (4, 64, 512, 512)


def test_every_fault_is_listed_at_once(change: Change) -> None:
    text = refusal(
        change(
            tensors={
                "blk.0.attn_q.weight": None,
                "output_norm.weight": None,
                "blk.1.ffn_down.weight": np.ones((64, 145)),
                "blk.1.attn_q.bias": np.ones(64),
                "blk.4.attn_norm.weight": np.ones(64),
                "output.weight": np.ones((511, 64)),
            }
        )
    )

    assert "blk.0.attn_q.weight is missing" in text
    assert "output_norm.weight is missing" in text
    assert "blk.1.ffn_down.weight has shape (64, 145), expected (64, 144)" in text
    assert "blk.1.attn_q.bias is not part of it" in text
    assert "blk.4.attn_norm.weight is not part of it" in text
    assert "output.weight has shape (511, 64), expected (512, 64)" in text


def test_an_unknown_architecture_is_refused_by_name(change: Change) -> None:
    text = refusal(change(architecture="mamba"))

    assert "is a 'mamba' model; this version runs: " in text
    assert "llama, mistral, qwen2, " in text


@pytest.mark.parametrize(
    "name",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_number_is_named(change: Change, name: str) -> None:
    assert f"no metadata 'llama.{name}'" in refusal(change(numbers={name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.head_count", 0),
        ("attention.head_count", -4),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", -2),
        ("attention.key_length", 5),
        ("attention.value_length", 8),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("block_count", 0),
        ("block_count", -1),
        ("block_count", 2**40),
        ("context_length", -1),
        ("embedding_length", 0),
        ("feed_forward_length", -8),
        ("rope.dimension_count", 2**40),
        ("rope.dimension_count", 8),
        ("rope.freq_base", float("inf")),
        ("rope.freq_base", -1.0),
    ],
)
def test_absurd_numbers_describe_no_network(change: Change, name: str, value: float) -> None:
    text = refusal(change(numbers={name: value}))

    assert "describes no" in text or "is no number" in text


@pytest.mark.parametrize(("name", "value"), [("embedding_length", 2**20), ("feed_forward_length", 2**24)])
def test_large_numbers_disagree_with_the_tensors(change: Change, name: str, value: int) -> None:
    assert "has shape" in refusal(change(numbers={name: value}))


def test_a_file_without_embeddings(change: Change) -> None:
    assert "token_embd.weight is missing" in refusal(change(tensors={"token_embd.weight": None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expert_count", 8),
        ("attention.sliding_window", 16),
        ("attention.scale", 0.5),
        ("embedding_scale", 12.0),
        ("logit_scale", 2.0),
        ("final_logit_softcapping", 30.0),
        ("attention.clamp_kqv", 8.0),
        ("rope.scaling.attn_factor", 1.2),
    ],
)
def test_options_of_gguf_files_that_are_not_computed_are_refused_by_name(
    change: Change, name: str, value: Value
) -> None:
    assert refusal(change(numbers={name: value})).endswith(f"sets llama.{name}, which this version does not run")


def test_attention_that_looks_ahead_is_refused(change: Change) -> None:
    assert "attention.causal is false" in refusal(change(numbers={"attention.causal": False}))


def test_options_that_are_off_are_no_matter(change: Change) -> None:
    off: dict[str, Value] = {
        "expert_count": 0,
        "attention.sliding_window": 512,
        "attention.clamp_kqv": 0.0,
        "rope.scaling.attn_factor": 1.0,
        "attention.causal": True,
        "logit_scale": 1.0,
        "residual_scale": 1.0,
        # What early converters wrote into every file, whatever its network.
        "use_parallel_residual": True,
    }

    assert read_config(open_checkpoint(change(numbers=off))) == read_config(open_checkpoint(change()))


def mistral(golden: Path, *, into: Path, window: Json) -> Path:
    return changed_folder(golden, into=into, config={"model_type": "mistral", "sliding_window": window})


def test_mistral_without_a_window_is_llama(golden_llama: Path, tmp_path: Path) -> None:
    found = read_config(open_checkpoint(mistral(golden_llama, into=tmp_path, window=None)))

    assert found == read_config(open_checkpoint(golden_llama))


def test_mistral_with_a_window_is_refused(golden_llama: Path, tmp_path: Path) -> None:
    assert "sets sliding_window" in refusal(mistral(golden_llama, into=tmp_path, window=64))
