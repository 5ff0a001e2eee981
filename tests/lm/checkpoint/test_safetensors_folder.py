"""Model folders of Hugging Face, against the safetensors library's own reader and writer."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors

from deployments.lm.checkpoint.safetensors_folder import SafetensorsFolder
from deployments.lm.checkpoint.source import Format
from deployments.messages.errors import CheckpointError
from tests.lm.checkpoint.making import CONFIG, entry, peak, spelled, write_folder

VALUES = np.arange(-12, 12).reshape(4, 6)
BFLOAT16 = VALUES.astype(ml_dtypes.bfloat16)


def test_values_are_those_that_the_library_wrote(tmp_path: Path) -> None:
    kinds = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<i1")
    tensors = {f"of {kind}": VALUES.astype(kind) for kind in kinds} | {
        "flags": VALUES > 0,
        "one": np.array([7], np.float32),
    }
    folder = SafetensorsFolder(write_folder(tmp_path / "model", tensors=tensors))

    assert (folder.name, folder.format, folder.architecture) == ("model", Format.SAFETENSORS, "llama")
    assert folder.shapes == {name: values.shape for name, values in tensors.items()}
    assert set(folder.types.values()) == {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "BOOL"}
    for name, values in tensors.items():
        found = folder.tensor(name)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, values.astype(np.float32), strict=True)
        np.testing.assert_array_equal(folder.tensor(name, part=slice(1, 3)), values[1:3].astype(np.float32))


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tensors={"t": BFLOAT16})
    with safetensors.safe_open(folder / "model.safetensors", framework="np") as library:
        assert library.get_slice("t").get_dtype() == "BF16"

    np.testing.assert_array_equal(SafetensorsFolder(folder).tensor("t"), VALUES.astype(np.float32), strict=True)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F4", "X9"])
def test_types_that_cannot_be_read_are_named(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path / "model", tensors={})
    (folder / "model.safetensors").write_bytes(spelled({"t": entry(kind=kind)}, bytes(4)))
    opened = SafetensorsFolder(folder)

    assert opened.types == {"t": kind}
    with pytest.raises(CheckpointError, match=f"tensor t has type {kind}, which cannot be read here; use a file with"):
        opened.tensor("t")


def test_keys_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = CONFIG | {
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
        "rope_parameters": {"full_attention": {"rope_theta": 1e6}},
        "sliding_window": None,
        "rope_theta": 10000,
        "max_position_embeddings": 512.0,
        "layer_types": ["full_attention"],
        "tie_word_embeddings": True,
    }
    folder = SafetensorsFolder(write_folder(tmp_path / "model", tensors={}, config=config))

    assert folder.get("rope_scaling.factor", float) == 8.0
    assert folder.get("rope_parameters.full_attention.rope_theta", float) == 1e6
    assert folder.get("sliding_window", int) is None
    assert folder.require("rope_theta", float) == 10000.0
    assert folder.require("max_position_embeddings", int) == 512
    assert folder.require("layer_types", list) == ["full_attention"]
    assert folder.require("tie_word_embeddings", bool) is True
    assert "sliding_window" not in folder.metadata_keys
    assert {"rope_scaling.rope_type", "model_type"} <= folder.metadata_keys
    with pytest.raises(CheckpointError, match=r"model/config\.json has no metadata 'head_dim'"):
        folder.require("head_dim", int)
    with pytest.raises(CheckpointError, match=r"model/config\.json: layer_types is list, expected int"):
        folder.get("layer_types", int)


def test_the_text_model_stands_outside(tmp_path: Path) -> None:
    config = {
        "model_type": "whole",
        "image_token_id": 4,
        "tie_word_embeddings": True,
        "text_config": {"model_type": "text", "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 5.0}},
        "vision_config": {"depth": 1},
    }
    folder = SafetensorsFolder(write_folder(tmp_path / "model", tensors={}, config=config))

    assert folder.architecture == "text"
    assert folder.get("tie_word_embeddings", bool) is False
    assert folder.get("rope_parameters.rope_theta", float) == 5.0
    assert folder.get("vision_config.depth", int) == 1
    assert folder.get("image_token_id", int) == 4
    assert not [key for key in folder.metadata_keys if key.startswith("text_config")]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "is quantised .quantization_config: 'awq'."),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
        (
            {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
            "'fp8'.*use the unquantised model",
        ),
        ({"compression_config": {"format": "int-quantized"}}, "compression_config: 'int-quantized'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: 'unnamed'"),
    ],
)
def test_quantised_folders_are_refused_by_name(tmp_path: Path, config: dict[str, object], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        SafetensorsFolder(write_folder(tmp_path / "model", tensors={}, config=CONFIG | config))


BROKEN_CONFIGS = {
    b"": "Expecting value",
    b"[]": "expected an object",
    b'{"a": "\xff"}': "can't decode",
    b'{"a":' * 100_000: "nested too deep",
    b'{"a":' * 20 + b"1" + b"}" * 20: "its objects are nested too deep",
    b'{"text_config": 3}': "text_config is int, expected an object",
    b'{"a": [' + b"[]," * 1_000_001: "lists and objects",
    b"{" + b" " * 2**24: "which no configuration has",
}


@pytest.mark.parametrize("number", range(len(BROKEN_CONFIGS)))
def test_broken_configurations_cost_one_sentence(tmp_path: Path, number: int) -> None:
    data, sentence = list(BROKEN_CONFIGS.items())[number]
    folder = write_folder(tmp_path / "model", tensors={})
    (folder / "config.json").write_bytes(data)
    with peak() as allocated, pytest.raises(CheckpointError, match=rf"config\.json.*{sentence}") as caught:
        SafetensorsFolder(folder)

    assert "\n" not in str(caught.value)
    assert allocated.bytes < 2 * len(data) + 2**20


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tensors={})
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a regular file"):
        SafetensorsFolder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        SafetensorsFolder(folder)


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        folder = write_folder(tmp_path / "model", tensors={"t": VALUES, name: VALUES}, name=name)
    with pytest.raises(CheckpointError, match=r"a\.safetensors and .*b\.safetensors both hold t; leave only one"):
        SafetensorsFolder(folder)


def test_an_index_that_names_more_than_there_is_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", tensors={"t": VALUES}, name="a.safetensors")
    owners = dict.fromkeys(("t", *(f"lost{n}" for n in range(10))), "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owners}))
    with pytest.raises(CheckpointError, match=r"names 'lost0', .*'lost7' and 2 more, which the files it says do not"):
        SafetensorsFolder(folder)


def test_reading_takes_the_tensor_and_little_more(tmp_path: Path) -> None:
    """A tensor of 32 MiB as float32."""
    folder = write_folder(tmp_path / "model", tensors={"t": np.zeros((2**11, 2**12), ml_dtypes.bfloat16)})
    with peak() as opening:
        opened = SafetensorsFolder(folder)
    with peak() as part:
        opened.tensor("t", part=slice(7, 9))
    with peak() as reading:
        values = opened.tensor("t")

    assert opening.bytes < 2**18
    assert part.bytes < 2**20
    assert reading.bytes < values.nbytes + 3 * 2**20
