"""A network's weights, wherever they lie: all faults at once, parts, changes and what may be absent."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from deployments.lm.checkpoint.source import Format, MetadataValue
from deployments.lm.checkpoint.weights import Weight, Weights, half_split, plus_one
from deployments.messages.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class InMemory:
    """A checkpoint that is nothing but arrays."""

    tensors: Mapping[str, np.ndarray]
    format: Format = Format.GGUF
    name: str = "some.gguf"
    architecture: str = "llama"
    files: tuple[Path, ...] = ()
    has_values: bool = True
    metadata_keys: frozenset[str] = frozenset()

    def get[T: MetadataValue](self, key: str, kind: type[T]) -> T | None:
        return None

    def require[T: MetadataValue](self, key: str, kind: type[T]) -> T:
        raise NotImplementedError

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: values.shape for name, values in self.tensors.items()}

    @property
    def types(self) -> Mapping[str, str]:
        return dict.fromkeys(self.tensors, "F32")

    def tensor(self, name: str, *, part: slice | None = None) -> np.ndarray:
        return self.tensors[name] if part is None else self.tensors[name][part]


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


TABLE = {
    "norm": Weight(shape=(4,), gguf="norm.weight", hf="model.norm.weight", from_hf=plus_one),
    "gate": Weight(
        shape=(3, 4),
        gguf="gate.weight",
        hf="gate_up.weight",
        hf_shape=(6, 4),
        hf_part=slice(0, 3),
    ),
    "up": Weight(shape=(3, 4), gguf="up.weight", hf="gate_up.weight", hf_shape=(6, 4), hf_part=slice(3, 6)),
    "conv": Weight(shape=(4, 2), gguf="conv", hf="conv.weight", hf_shape=(4, 1, 2), from_hf=lambda x: x[:, 0]),
    "bias": Weight(shape=(3,), gguf="bias", hf="bias", is_optional=True),
    "scale": Weight(shape=(1,), gguf=None, hf="scale", is_optional=True),
}
GGUF = {"norm.weight": counted(4), "gate.weight": counted(3, 4), "up.weight": counted(3, 4) + 12, "conv": counted(4, 2)}
HF = {"model.norm.weight": counted(4) - 1, "gate_up.weight": counted(6, 4), "conv.weight": counted(4, 1, 2)}


@pytest.mark.parametrize(("format", "tensors"), [(Format.GGUF, GGUF), (Format.SAFETENSORS, HF)])
def test_both_formats_give_one_network(format: Format, tensors: Mapping[str, np.ndarray]) -> None:
    weights = Weights(InMemory(tensors=tensors, format=format), table=TABLE)

    np.testing.assert_array_equal(weights.read("norm"), counted(4), strict=True)
    np.testing.assert_array_equal(weights.read("gate"), counted(6, 4)[:3], strict=True)
    np.testing.assert_array_equal(weights.read("up"), counted(6, 4)[3:], strict=True)
    np.testing.assert_array_equal(weights.read("conv"), counted(4, 2), strict=True)
    assert all(weights.read(name).flags.c_contiguous for name in ("norm", "gate", "up", "conv"))
    assert [name for name in TABLE if weights.has(name)] == ["norm", "gate", "up", "conv"]
    assert not weights.has("scale")
    assert not weights.has("unheard of")


def test_what_may_be_absent_may_be_there() -> None:
    weights = Weights(InMemory(tensors=GGUF | {"bias": counted(3)}), table=TABLE)

    assert weights.has("bias")
    np.testing.assert_array_equal(weights.read("bias"), counted(3))


def test_all_that_is_wrong_is_said_at_once() -> None:
    tensors = {
        "norm.weight": counted(5),
        "up.weight": counted(4, 3),
        "bias": counted(2),
        "vision.weight": counted(1),
        "mtp.weight": counted(1),
    }
    with pytest.raises(CheckpointError) as caught:
        Weights(InMemory(tensors=tensors), table=TABLE, ignored=lambda name: name.startswith("vision"))

    assert str(caught.value) == (
        "some.gguf does not hold a whole llama network: conv is missing; gate.weight is missing; "
        "mtp.weight is not part of it; norm.weight has shape (5,), expected (4,); "
        "up.weight has shape (4, 3), expected (3, 4); bias has shape (2,), expected (3,)"
    )


def test_very_many_faults_are_counted() -> None:
    table = {str(n): Weight(shape=(1,), gguf=f"t{n:03}", hf=None) for n in range(100)}
    with pytest.raises(CheckpointError, match=r"t000 is missing; .*t039 is missing; and 60 more$"):
        Weights(InMemory(tensors={}), table=table)


def test_a_tensor_of_many_weights_is_named_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        Weights(
            InMemory(tensors=HF | {"gate_up.weight": counted(6, 5)}, format=Format.SAFETENSORS),
            table=TABLE,
        )

    assert str(caught.value).count("gate_up.weight") == 1


def test_a_change_that_does_not_give_the_shape_is_a_defect_that_shows() -> None:
    table = {"t": Weight(shape=(2, 2), gguf="t", hf=None, gguf_shape=(4,))}
    with pytest.raises(AssertionError, match=r"t became \(4,\), the network takes \(2, 2\)"):
        Weights(InMemory(tensors={"t": counted(4)}), table=table).read("t")


@pytest.mark.parametrize(("heads", "rotated"), [(1, None), (2, None), (2, 4), (3, 2), (2, 0)])
@pytest.mark.parametrize("inner", [(), (5,)])
def test_half_split_undoes_the_pairs_of_llama_cpp(heads: int, rotated: int | None, inner: tuple[int, ...]) -> None:
    """`permute` of llama.cpp's convert_hf_to_gguf.py, on the rotary rows of each head."""
    canonical = counted(heads * 6, *inner)
    rows = canonical.reshape(heads, 6, *inner)
    count = 6 if rotated is None else rotated
    paired = rows[:, :count].reshape(heads, 2, count // 2, *inner).swapaxes(1, 2).reshape(heads, count, *inner)
    stored = np.concatenate([paired, rows[:, count:]], axis=1).reshape(canonical.shape)

    np.testing.assert_array_equal(half_split(heads=heads, rotated=rotated)(stored), canonical, strict=True)
