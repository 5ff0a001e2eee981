"""Dequantisation, byte for byte what llama.cpp's own code makes of the same bytes (`tests/data/golden`)."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from tests.lm.checkpoint.making import one_tensor

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
LISTED = (
    *("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
)
BESIDES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")


@pytest.fixture(scope="module")
def vectors() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "dequant_vectors.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("kind", LISTED + BESIDES)
def test_every_type_is_decoded_as_llama_cpp_does(
    kind: str, vectors: dict[str, np.ndarray], broken: Callable[[bytes], Path]
) -> None:
    raw, wanted = vectors[f"{kind}_raw"], vectors[f"{kind}_f32"]
    data = one_tensor(shape=wanted.shape, kind=gguf.GGMLQuantizationType[kind], data=raw.tobytes())
    file = GgufFile(broken(data))

    assert file.types == {"t": kind}
    assert file.tensor("t").tobytes() == wanted.astype("<f4").tobytes()
    assert file.tensor("t", part=slice(2, 5)).tobytes() == wanted[2:5].astype("<f4").tobytes()


def test_float32_is_taken_as_it_is(vectors: dict[str, np.ndarray], broken: Callable[[bytes], Path]) -> None:
    values = vectors["x"].astype("<f4")

    assert (
        GgufFile(broken(one_tensor(shape=values.shape, kind=0, data=values.tobytes()))).tensor("t").tobytes()
        == values.tobytes()
    )


@pytest.mark.parametrize("kind", ["Q4_K", "BF16", "Q8_0"])
def test_tensors_of_many_pieces_are_those_of_one(
    kind: str, vectors: dict[str, np.ndarray], broken: Callable[[bytes], Path]
) -> None:
    """Longer than what is decoded at once, and no multiple of it."""
    copies = 300
    raw, wanted = vectors[f"{kind}_raw"], vectors[f"{kind}_f32"]
    shape = (copies * wanted.shape[0], wanted.shape[1])
    data = one_tensor(shape=shape, kind=gguf.GGMLQuantizationType[kind], data=copies * raw.tobytes())

    assert GgufFile(broken(data)).tensor("t").tobytes() == copies * wanted.astype("<f4").tobytes()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q6_K", "Q4_K_M"])
def test_files_of_llama_cpp_are_decoded_as_it_does(kind: str) -> None:
    folder = GOLDEN / "llama_k256"
    listed = json.loads((folder / "manifest.json").read_text())[kind]["tensors"]
    file = GgufFile(folder / f"llama_k256.{kind}.gguf")
    with np.load(folder / f"llama_k256.{kind}.deq.npz") as stored:
        rows = dict(stored)

    assert len(listed) >= 3
    assert set(rows) == set(listed)
    for name, wanted in listed.items():
        values = file.tensor(name)
        assert file.types[name] == wanted["type"].upper()
        assert values.shape == tuple(wanted["shape"])
        assert hashlib.sha256(values.tobytes()).hexdigest() == wanted["sha256_f32"]
        assert file.tensor(name, part=slice(0, len(rows[name]))).tobytes() == rows[name].tobytes()
