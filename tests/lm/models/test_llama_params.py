"""From files to networks: what a file lacks, has too much or misshapen is said all at once."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.models.load import load_network
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError

WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY = 16, 4, 2, 24, 40
NUMBERS: dict[str, int | float | str | None] = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": WIDTH,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}

type WriteLlama = Callable[..., Path]


def shapes() -> dict[str, tuple[int, ...]]:
    keys = WIDTH * KV_HEADS // HEADS
    layer = {
        "attn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (keys, WIDTH),
        "attn_v": (keys, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    found: dict[str, tuple[int, ...]] = {f"blk.{i}.{name}.weight": s for i in range(2) for name, s in layer.items()}
    return found | {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}


@pytest.fixture
def write_llama(tmp_path: Path) -> WriteLlama:
    """Writes a small network; keyword arguments replace tensor shapes and metadata, `None` leaves one out."""

    def write(
        *,
        tensors: dict[str, tuple[int, ...] | None] | None = None,
        numbers: dict[str, int | float | str | None] | None = None,
        architecture: str = "llama",
    ) -> Path:
        path = tmp_path / "small.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, value in (NUMBERS | (numbers or {})).items():
            key = f"llama.{name}"
            match value:
                case int():
                    writer.add_int64(key, value)
                case float():
                    writer.add_float32(key, value)
                case str():
                    writer.add_string(key, value)
        rng = np.random.default_rng(0)
        for name, shape in (shapes() | (tensors or {})).items():
            if shape is not None:
                writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_network(GgufFile(path), precision=Precision.F32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_file_becomes_a_network(write_llama: WriteLlama) -> None:
    for precision in Precision:
        network = load_network(GgufFile(write_llama()), precision=precision)
        assert network.config.layers == 2
        assert network.config.head_dim == WIDTH // HEADS
        assert network.config.vocabulary == VOCABULARY


def test_every_fault_is_listed_at_once(write_llama: WriteLlama) -> None:
    text = refusal(
        write_llama(
            tensors={
                "blk.0.attn_q.weight": None,
                "output_norm.weight": None,
                "blk.1.ffn_down.weight": (WIDTH, INNER + 1),
                "blk.1.attn_q.bias": (WIDTH,),
                "blk.2.attn_norm.weight": (WIDTH,),
                "output.weight": (VOCABULARY - 1, WIDTH),
            }
        )
    )

    assert "blk.0.attn_q.weight is missing" in text
    assert "output_norm.weight is missing" in text
    assert f"blk.1.ffn_down.weight has shape {(WIDTH, INNER + 1)}, expected {(WIDTH, INNER)}" in text
    assert "blk.1.attn_q.bias is not part of a llama network" in text
    assert "blk.2.attn_norm.weight is not part of a llama network" in text
    assert f"output.weight has shape {(VOCABULARY - 1, WIDTH)}" in text


def test_an_unknown_architecture_is_refused_by_name(write_llama: WriteLlama) -> None:
    assert "is a 'mamba' model; this version runs: llama" in refusal(write_llama(architecture="mamba"))


def test_unknown_rope_scaling_is_refused_by_name(write_llama: WriteLlama) -> None:
    assert "rope scaling 'yarn'" in refusal(write_llama(numbers={"rope.scaling.type": "yarn"}))


@pytest.mark.parametrize(
    "name", [name for name in NUMBERS if name not in ("rope.freq_base", "attention.head_count_kv")]
)
def test_a_missing_number_is_named(write_llama: WriteLlama, name: str) -> None:
    assert f"no metadata 'llama.{name}'" in refusal(write_llama(numbers={name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.head_count", 0),
        ("attention.head_count", -4),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", -2),
        ("attention.key_length", 5),
        ("block_count", 0),
        ("block_count", -1),
        ("block_count", 2**40),
        ("context_length", -1),
        ("embedding_length", 0),
        ("feed_forward_length", -8),
        ("rope.dimension_count", 2**40),
        ("rope.dimension_count", 3),
        ("rope.freq_base", float("nan")),
        ("rope.freq_base", -1.0),
    ],
)
def test_absurd_numbers_describe_no_network(write_llama: WriteLlama, name: str, value: float) -> None:
    assert "describes no" in refusal(write_llama(numbers={name: value}))


@pytest.mark.parametrize(("name", "value"), [("embedding_length", 2**40), ("feed_forward_length", 2**62)])
def test_large_numbers_disagree_with_the_tensors(write_llama: WriteLlama, name: str, value: int) -> None:
    assert "has shape" in refusal(write_llama(numbers={name: value}))


def test_a_file_without_embeddings(write_llama: WriteLlama) -> None:
    assert "token_embd.weight is missing" in refusal(write_llama(tensors={"token_embd.weight": None}))
