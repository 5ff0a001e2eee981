"""A network's numbers, under the keys of either format, and the rotary tables that they describe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.messages.errors import CheckpointError

# Of anything: little enough for an array. And of layers or experts where no listed tensors bound them.
_MOST, _MOST_UNLISTED = 1 << 24, 1024
_EMBEDDINGS = (
    "token_embd.weight",
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "transformer.wte.weight",
)
_SCALING_NUMBERS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
)
# What GGUF files slow a pair down by that is not to turn at all.
_STILL = float(np.float32(1e30))


@dataclass(frozen=True, kw_only=True)
class Key:
    """A number's key in either format: GGUF's without the architecture's name before it."""

    gguf: str
    hf: str


_VOCABULARY = Key(gguf="vocab_size", hf="vocab_size")
LAYERS = Key(gguf="block_count", hf="num_hidden_layers")
WIDTH = Key(gguf="embedding_length", hf="hidden_size")
HEADS = Key(gguf="attention.head_count", hf="num_attention_heads")
KV_HEADS = Key(gguf="attention.head_count_kv", hf="num_key_value_heads")
HEAD_DIM = Key(gguf="attention.key_length", hf="head_dim")
FEED_FORWARD = Key(gguf="feed_forward_length", hf="intermediate_size")
CONTEXT = Key(gguf="context_length", hf="max_position_embeddings")
EPSILON = Key(gguf="attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
ROPE_BASE = Key(gguf="rope.freq_base", hf="rope_theta")
ROPE_DIMS = Key(gguf="rope.dimension_count", hf="rope_dims")
WINDOW = Key(gguf="attention.sliding_window", hf="sliding_window")
LAYER_TYPES = Key(gguf="attention.layer_types", hf="layer_types")
PATTERN = Key(gguf="attention.sliding_window_pattern", hf="sliding_window_pattern")

# What Hugging Face calls the two kinds of layers with attention.
SLIDING, FULL = "sliding_attention", "full_attention"

# What things are multiplied by: one changes nothing.
_FACTORS = (
    *("embedding_scale", "embedding_multiplier", "residual_scale", "residual_multiplier"),
    *("logit_scale", "logits_scaling"),
)


class Numbers:
    """Reads numbers; every fault is a `CheckpointError` that names key and file."""

    def __init__(self, checkpoint: Checkpoint, /) -> None:
        self.checkpoint = checkpoint
        self.format = checkpoint.format

    def name(self, key: Key, /) -> str:
        """The key as this checkpoint has it."""
        return f"{self.checkpoint.architecture}.{key.gguf}" if self.format is Format.GGUF else key.hf

    def get[T: (int, float, bool, str, list[int], list[float], list[bool], list[str])](
        self, key: Key, kind: type[T], /
    ) -> T | None:
        """The value, or `None`; `list` stands for any array."""
        return self.checkpoint.get(self.name(key), kind)

    def size(self, key: Key, /, *, default: int | None = None, most: int = _MOST) -> int:
        """A number of things, from one to `most`."""
        value = self.checkpoint.get(self.name(key), int)
        if value is None:
            value = self.checkpoint.require(self.name(key), int) if default is None else default
        if not 1 <= value <= most:
            self.refuse(f"{self.name(key)} is {value}, which is not from 1 to {most}")
        return value

    def positive(self, key: Key, /, *, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.checkpoint.get(self.name(key), float)
        if value is None:
            value = self.checkpoint.require(self.name(key), float) if default is None else default
        # GGUF files keep them as float32; the same model has the same bits in either format.
        kept = _as_float32(value)
        if not (kept > 0 and math.isfinite(kept)):
            self.refuse(f"{self.name(key)} is {value}, which is not a positive number")
        return kept

    def per_layer[T: (int, bool, str)](self, key: Key, kind: type[T], /, *, layers: int) -> tuple[T, ...] | None:
        """What each layer has: an array with one value per layer, or one value for all of them."""
        try:
            value = self.checkpoint.get(self.name(key), kind)
        except CheckpointError:
            values = [one for one in self.checkpoint.require(self.name(key), list) if type(one) is kind]
            if len(values) != layers:
                self.refuse(f"{self.name(key)} is no {kind.__name__} for each of {layers} layers")
            return tuple(values)
        return None if value is None else (value,) * layers

    def refuse_options(self, *names: str) -> None:
        """Raises `CheckpointError` when one of these keys asks for something that this version does not compute."""
        prefix = f"{self.checkpoint.architecture}." if self.format is Format.GGUF else ""
        for name in (f"{prefix}{name}" for name in names):
            if name in self.checkpoint.metadata_keys and not self._is_off(name):
                raise CheckpointError(f"{self.checkpoint.name} sets {name}, which this version does not run")

    def _is_off(self, name: str) -> bool:
        for kind in (float, bool, str):
            try:
                value = self.checkpoint.get(name, kind)
            except CheckpointError:
                continue
            return not value or (value == 1.0 and name.rpartition(".")[2] in _FACTORS)
        return not self.checkpoint.get(name, list)

    def refuse(self, fault: str, /) -> None:
        """Raises `CheckpointError`: the numbers describe no network."""
        raise CheckpointError(f"{self.checkpoint.name} describes no {self.checkpoint.architecture} network: {fault}")

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        shapes = self.checkpoint.shapes
        found = next((shapes[name][0] for name in _EMBEDDINGS if name in shapes), None)
        # Where the table is missing among weights, whoever reads them says so.
        return (0 if self.checkpoint.has_values else self.size(_VOCABULARY)) if found is None else found

    @property
    def most_layers(self) -> int:
        """A layer has several tensors: more layers than tensors would cost memory before it is noticed."""
        return max(len(self.checkpoint.shapes), 1) if self.checkpoint.has_values else _MOST_UNLISTED

    @property
    def most_experts(self) -> int:
        """As many as the longest tensor has parts: more would cost memory before it is noticed."""
        listed = (shape[0] for shape in self.checkpoint.shapes.values() if shape)
        return max(listed, default=1) if self.checkpoint.has_values else _MOST_UNLISTED


def sliding_layers(numbers: Numbers, /, *, layers: int, period: int) -> tuple[bool, ...]:
    """Which layers see a window of positions only: as they are listed, or all but every `period`th."""
    if numbers.format is Format.SAFETENSORS:
        kinds = numbers.per_layer(LAYER_TYPES, str, layers=layers)
        if kinds is not None:
            unknown = set(kinds) - {SLIDING, FULL}
            if unknown:
                numbers.refuse(f"its layer_types name {', '.join(sorted(unknown))}, not {SLIDING} or {FULL}")
            return tuple(kind == SLIDING for kind in kinds)
        period = numbers.size(PATTERN, default=numbers.checkpoint.get("_sliding_window_pattern", int) or period)
    else:
        try:
            listed = numbers.per_layer(PATTERN, bool, layers=layers)
        except CheckpointError:
            period, listed = numbers.size(PATTERN), None
        if listed is not None:
            return listed
    return tuple((layer + 1) % period != 0 for layer in range(layers))


def rope_base(numbers: Numbers, /, *, key: Key = ROPE_BASE, default: float = 10_000.0, of: str | None = None) -> float:
    """The base of the rotary frequencies; transformers 5 keeps it among the parameters of the scaling.

    Args:
        of: the kind of layers, where the parameters differ by kind.
    """
    if numbers.format is Format.SAFETENSORS:
        nested = numbers.checkpoint.get(f"{_parameters(of)}.rope_theta", float)
        default = default if nested is None else nested
    return numbers.positive(key, default=default)


def frequencies(*, base: float, dims: int, factors: Float64[np.ndarray, " half"] | None = None) -> np.ndarray:
    """Radians per position of each rotary pair (Su et al., 2021), slowed down by `factors`."""
    plain = base ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)
    return plain if factors is None else plain / factors


def rope_factors(numbers: Numbers, /, *, base: float, dims: int, of: str | None = None) -> Float64[np.ndarray, " half"]:
    """What a checkpoint's rope scaling divides each frequency by; ones where there is none.

    Args:
        of: the kind of layers, where the scaling differs by kind.

    Raises:
        CheckpointError: a kind of scaling that this version does not run.
    """
    scaling = _scaling(numbers, of=of)
    kind = scaling.get("type", "none")
    ones = np.ones(dims // 2)
    if kind in ("none", "default", ""):
        return _stored_factors(numbers, default=ones)
    if kind == "linear":
        factor = _above_zero(numbers, scaling, "factor")
        return _stored_factors(numbers, default=ones) * factor
    if kind == "llama3" and numbers.format is Format.SAFETENSORS:
        return _llama3_factors(numbers, scaling=scaling, base=base, dims=dims)
    if kind == "proportional" and numbers.format is Format.SAFETENSORS:
        return _proportional_factors(numbers, scaling=scaling, dims=dims)
    raise CheckpointError(
        f"{numbers.checkpoint.name} uses rope scaling '{kind}', which this version does not run; "
        "it runs linear, llama3 and proportional scaling"
    )


def _parameters(of: str | None) -> str:
    return "rope_parameters" if of is None else f"rope_parameters.{of}"


def _scaling(numbers: Numbers, *, of: str | None) -> Mapping[str, str | float]:
    checkpoint = numbers.checkpoint
    found: dict[str, str | float] = {}
    if numbers.format is Format.GGUF:
        prefix = f"{checkpoint.architecture}.rope.scaling"
        factor = checkpoint.get(f"{prefix}.factor", float)
        if factor is None:
            factor = checkpoint.get(f"{checkpoint.architecture}.rope.scale_linear", float)
        # As llama.cpp reads it: a factor without a kind is of linear scaling, and 0 is none.
        found["type"] = checkpoint.get(f"{prefix}.type", str) or ("linear" if factor else "none")
        if factor is not None:
            found["factor"] = factor
        return found
    for part in ("rope_scaling", _parameters(of)):
        if part in checkpoint.metadata_keys:
            numbers.refuse(f"{part} is not an object, but one value")
        for key in ("rope_type", "type"):
            kind = checkpoint.get(f"{part}.{key}", str)
            if kind is not None:
                found.setdefault("type", kind)
        for key in _SCALING_NUMBERS:
            value = checkpoint.get(f"{part}.{key}", float)
            if value is not None:
                found.setdefault(key, value)
    return found


def _stored_factors(numbers: Numbers, *, default: Float64[np.ndarray, " half"]) -> Float64[np.ndarray, " half"]:
    """GGUF files keep Llama 3's factors as a tensor."""
    if "rope_freqs.weight" not in numbers.checkpoint.shapes or numbers.format is not Format.GGUF:
        return default
    stored = numbers.checkpoint.tensor("rope_freqs.weight").astype(np.float64)
    if stored.shape != default.shape:
        numbers.refuse(f"rope_freqs.weight has shape {stored.shape}, expected {default.shape}")
    return stored


def _llama3_factors(
    numbers: Numbers, *, scaling: Mapping[str, str | float], base: float, dims: int
) -> Float64[np.ndarray, " half"]:
    """Llama 3's: long waves are slowed down, short ones kept, those between partly (Dubey et al., 2024)."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (np.float32(_above_zero(numbers, scaling, name)) for name in names)
    if high <= low:
        numbers.refuse(f"its rope scaling has high_freq_factor {high}, which is not above low_freq_factor {low}")
    # In float32 and in the order of llama.cpp's converter, reciprocals included: GGUF files keep the result, and the
    # same model has the same bits in either format.
    one = np.float32(1)
    shares = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    turns = one / np.float32(base ** shares.astype(np.float64))
    waves = one / turns * np.float32(2 * np.pi)
    smooth = (one / waves * original - low) / (high - low)
    between = one / ((one - smooth) / factor + smooth)
    factors = np.where(waves < original / high, one, np.where(waves > original / low, factor, between))
    return factors.astype(np.float64)


def _proportional_factors(
    numbers: Numbers, *, scaling: Mapping[str, str | float], dims: int
) -> Float64[np.ndarray, " half"]:
    """Gemma 4's: the first pairs turn as if all did, the others not at all."""
    turning = int(_above_zero(numbers, scaling, "partial_rotary_factor") * dims // 2)
    factors = np.full(dims // 2, _STILL)
    factors[:turning] = float(scaling.get("factor", 1.0))
    return factors


def _above_zero(numbers: Numbers, scaling: Mapping[str, str | float], key: str) -> float:
    value = scaling.get(key)
    kept = _as_float32(value) if isinstance(value, float) else 0.0
    if not (kept > 0 and math.isfinite(kept)):
        numbers.refuse(f"its rope scaling has {key} {value}, which is not a positive number")
    return kept


def _as_float32(value: float, /) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
