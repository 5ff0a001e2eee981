"""A network's weights by the network's own names, wherever a checkpoint keeps them.

A family lists its weights once, with both formats' names; all that is missing, left over or misshapen is said at once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.messages.errors import CheckpointError

type Tensor = Float32[np.ndarray, "..."]
type Change = Callable[[Tensor], Tensor]

_MOST_FAULTS = 40


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Where one weight is found and what it looks like there.

    Attributes:
        shape: as the network wants it, after the change.
        gguf, hf: its name in either format; `None` where the format has no such tensor.
        from_gguf, from_hf: what to do with the stored tensor; `None` leaves it as it is.
        gguf_shape, hf_shape: as it is stored, whole; `None` means `shape`.
        gguf_part, hf_part: which part of the stored tensor's outermost dimension it is; `None` means all.
        is_optional: a checkpoint may lack it.
        is_usual: where no tensors are listed, it is taken to be there.
    """

    shape: tuple[int, ...]
    gguf: str | None
    hf: str | None
    from_gguf: Change | None = None
    from_hf: Change | None = None
    gguf_shape: tuple[int, ...] | None = None
    hf_shape: tuple[int, ...] | None = None
    gguf_part: slice | None = None
    hf_part: slice | None = None
    is_optional: bool = False
    is_usual: bool = True

    def source(self, format: Format, /) -> str | None:
        """Its name in a checkpoint of this format."""
        return self.gguf if format is Format.GGUF else self.hf

    def stored_shape(self, format: Format, /) -> tuple[int, ...]:
        """Its shape in a checkpoint of this format."""
        stored = self.gguf_shape if format is Format.GGUF else self.hf_shape
        return self.shape if stored is None else stored

    def part(self, format: Format, /) -> slice | None:
        """Which part of the stored tensor it is."""
        return self.gguf_part if format is Format.GGUF else self.hf_part

    def change(self, format: Format, /) -> Change | None:
        """What makes the stored tensor the network's."""
        return self.from_gguf if format is Format.GGUF else self.from_hf


class Weights:
    """The weights of one checkpoint, read one by one as they are asked for.

    Args:
        table: the network's names to where each weight is found. Several may lie in one stored tensor.
        ignored: whether a stored tensor that no weight names is none of this network's business.

    Raises:
        CheckpointError: with every missing, extra and misshapen tensor.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        table: Mapping[str, Weight],
        ignored: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._checkpoint = checkpoint
        self._table = table
        self._shapes = checkpoint.shapes if checkpoint.has_values else checkpoint.shapes or self._supposed()
        faults = [*self._missing(), *self._extra(ignored), *dict.fromkeys(self._misshapen())]
        if faults:
            shown = "; ".join(faults[:_MOST_FAULTS])
            more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
            raise CheckpointError(
                f"{checkpoint.name} does not hold a whole {checkpoint.architecture} network: {shown}{more}"
            )

    @property
    def have_values(self) -> bool:
        """Whether they can be read."""
        return self._checkpoint.has_values

    def shape(self, name: str, /) -> tuple[int, ...]:
        """The weight's, as the network wants it."""
        return self._table[name].shape

    def has(self, name: str, /) -> bool:
        """Whether an optional weight is there."""
        weight = self._table.get(name)
        return weight is not None and self._source(weight) in self._shapes

    def read(self, name: str, /) -> Tensor:
        """The weight as the network wants it, contiguous."""
        weight = self._table[name]
        source = self._source(weight)
        if source is None:
            raise AssertionError(f"{name} has no tensor in a {self._checkpoint.format} checkpoint")
        stored = self._checkpoint.tensor(source, part=weight.part(self._checkpoint.format))
        change = weight.change(self._checkpoint.format)
        value = np.ascontiguousarray(stored if change is None else change(stored), np.float32)
        # The sum is not finite where a value is not, and costs a tenth of looking at each.
        with np.errstate(invalid="ignore"):
            total = value.sum(dtype=np.float64)
        if not np.isfinite(total):
            raise CheckpointError(
                f"{self._checkpoint.name}: tensor {source} holds values that are not finite; download it again"
            )
        if value.shape != weight.shape:
            raise AssertionError(f"{name} became {value.shape}, the network takes {weight.shape}")
        return value

    def _supposed(self) -> Mapping[str, tuple[int, ...]]:
        """What a checkpoint that lists no tensors would hold."""
        format = self._checkpoint.format
        usual = (weight for weight in self._table.values() if weight.is_usual)
        return {name: weight.stored_shape(format) for weight in usual if (name := weight.source(format)) is not None}

    def _source(self, weight: Weight) -> str | None:
        return weight.source(self._checkpoint.format)

    def _missing(self) -> Iterator[str]:
        sources = {self._source(weight) for weight in self._table.values() if not weight.is_optional}
        return (f"{name} is missing" for name in sorted(filter(None, sources)) if name not in self._shapes)

    def _extra(self, ignored: Callable[[str], bool]) -> Iterator[str]:
        known = {self._source(weight) for weight in self._table.values()}
        extra = sorted(name for name in self._shapes if name not in known and not ignored(name))
        return (f"{name} is not part of it" for name in extra)

    def _misshapen(self) -> Iterator[str]:
        for weight in self._table.values():
            name, wanted = self._source(weight), weight.stored_shape(self._checkpoint.format)
            if name is not None and name in self._shapes and self._shapes[name] != wanted:
                yield f"{name} has shape {self._shapes[name]}, expected {wanted}"


def half_split(*, heads: int, rotated: int | None = None) -> Change:
    """Puts rows that llama.cpp stores with rotary pairs adjacent back into half-split order, per head.

    Args:
        rotated: how many leading rows of a head are rotary; `None` means all.
    """

    def change(stored: Tensor) -> Tensor:
        per_head = stored.reshape(heads, stored.shape[0] // heads, *stored.shape[1:])
        dims = per_head.shape[1] if rotated is None else rotated
        pairs = per_head[:, :dims].reshape(heads, dims // 2, 2, *stored.shape[1:]).swapaxes(1, 2)
        turned = pairs.reshape(heads, dims, *stored.shape[1:])
        return np.concatenate([turned, per_head[:, dims:]], axis=1).reshape(stored.shape)

    return change


def plus_one(stored: Tensor) -> Tensor:
    """A norm's weight that is stored as its distance from one (Hugging Face's Gemma 3 and Qwen3.5)."""
    return stored + np.float32(1.0)
