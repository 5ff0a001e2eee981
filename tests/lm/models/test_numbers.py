"""Numbers in the bits that either format keeps, and rotary tables against their formulas."""

from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.models import numbers as keys
from deployments.lm.models.load import load_network
from deployments.lm.models.numbers import Numbers, frequencies, rope_factors
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError
from tests.lm.models.files import Value, changed_file
from tests.lm.models.folders import Json, changed_folder

BASE, DIMS = 10_000.0, 8


def table(path: Path) -> np.ndarray:
    (only,) = load_network(open_checkpoint(path), precision=Precision.F32).rotary
    return np.asarray(only[...])


def slowed(factor: float) -> np.ndarray:
    """Llama's frequencies, base ** (-2 i / dims), of positions `factor` times as close."""
    return (BASE ** (-np.arange(0, DIMS, 2) / DIMS) / factor).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4.0),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, 2.5),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 8, "rope_theta": BASE}}, 8.0),
        ({"rope_scaling": {"rope_type": "default"}}, 1.0),
    ],
)
def test_linear_scaling_slows_every_pair_down(
    golden_llama: Path, tmp_path: Path, config: dict[str, Json], factor: float
) -> None:
    np.testing.assert_array_equal(table(changed_folder(golden_llama, into=tmp_path, config=config)), slowed(factor))


@pytest.mark.parametrize(
    ("numbers", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({}, 1.0),
    ],
)
def test_linear_scaling_of_gguf_files(
    golden_llama: Path, tmp_path: Path, numbers: dict[str, Value], factor: float
) -> None:
    path = changed_file(golden_llama / "llama.f16.gguf", into=tmp_path / "scaled.gguf", numbers=numbers)

    np.testing.assert_array_equal(table(path), slowed(factor))


def test_unknown_scaling_of_gguf_files_is_refused_by_name(golden_llama: Path, tmp_path: Path) -> None:
    path = changed_file(
        golden_llama / "llama.f16.gguf", into=tmp_path / "yarn.gguf", numbers={"rope.scaling.type": "yarn"}
    )
    with pytest.raises(CheckpointError, match="rope scaling 'yarn', which this version does not run"):
        table(path)


@pytest.mark.parametrize("part", ["rope_scaling", "rope_parameters"])
def test_scaling_that_is_one_value_is_refused(golden_llama: Path, tmp_path: Path, part: str) -> None:
    folder = changed_folder(golden_llama, into=tmp_path, config={part: "linear"})
    with pytest.raises(CheckpointError, match=f"{part} is not an object, but one value"):
        table(folder)


def test_llama_3_slows_long_waves_down(golden_llama_rope3: Path) -> None:
    """The formula of Meta's own code, in f64. GGUF files keep these factors: `test_golden.py` compares the bits."""
    base, dims, factor, low, high, original = 500_000.0, 16, 8.0, 1.0, 4.0, 64.0
    wanted = []
    for frequency in frequencies(base=base, dims=dims):
        wave = 2 * np.pi / frequency
        smooth = (original / wave - low) / (high - low)
        if wave < original / high:
            wanted.append(frequency)
        elif wave > original / low:
            wanted.append(frequency / factor)
        else:
            wanted.append((1 - smooth) * frequency / factor + smooth * frequency)

    np.testing.assert_allclose(table(golden_llama_rope3), wanted, rtol=1e-6)


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0.0, -1.0])
def test_absurd_scaling_describes_no_network(
    golden_llama_rope3: Path, tmp_path: Path, key: str, value: float | None
) -> None:
    scaling: dict[str, Json] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = changed_folder(golden_llama_rope3, into=tmp_path, config={"rope_scaling": scaling | {key: value}})
    with pytest.raises(CheckpointError, match=f"its rope scaling has {key} "):
        table(folder)


def test_bounds_of_llama_3_must_differ(golden_llama_rope3: Path, tmp_path: Path) -> None:
    scaling: dict[str, Json] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 4.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = changed_folder(golden_llama_rope3, into=tmp_path, config={"rope_scaling": scaling})
    with pytest.raises(CheckpointError, match="not above low_freq_factor"):
        table(folder)


def test_numbers_have_the_bits_of_float32_in_either_format(golden_llama: Path, tmp_path: Path) -> None:
    """0.1 has not, in JSON."""
    folder = changed_folder(golden_llama, into=tmp_path / "folder", config={"rms_norm_eps": 0.1})
    file = changed_file(
        golden_llama / "llama.f16.gguf",
        into=tmp_path / "file.gguf",
        numbers={"attention.layer_norm_rms_epsilon": 0.1},
    )
    left, right = (Numbers(open_checkpoint(path)).positive(keys.EPSILON) for path in (folder, file))

    assert left == right == float(np.float32(0.1)) != 0.1


def test_factors_of_the_wrong_size_are_refused(golden_llama_rope3: Path, tmp_path: Path) -> None:
    path = changed_file(
        golden_llama_rope3 / "llama_rope3.f32.gguf",
        into=tmp_path / "short.gguf",
        tensors={"rope_freqs.weight": np.ones(4)},
    )
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has shape \(4,\), expected \(8,\)"):
        rope_factors(Numbers(open_checkpoint(path)), base=BASE, dims=16)
