"""The numbers of the gemma4 family, and what each of its layers is.

Layers differ: sliding ones have heads and rotary tables of their own, the last ones may see what earlier ones wrote.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from deployments.lm.cache.layout import KeysAndValues
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.decoder import DecoderConfig
from deployments.lm.models import gemma
from deployments.lm.models import numbers as keys
from deployments.lm.models.numbers import Key, Numbers, rope_base, sliding_layers

_GLOBAL_HEAD_DIM = 512
_LOCAL_HEAD_DIM_KEY = Key(gguf="attention.key_length_swa", hf="head_dim")
_GLOBAL_HEAD_DIM_KEY = Key(gguf="attention.key_length", hf="global_head_dim")
_GLOBAL_KV_HEADS_KEY = Key(gguf="attention.head_count_kv", hf="num_global_key_value_heads")
_SHARED_KEY = Key(gguf="attention.shared_kv_layers", hf="num_kv_shared_layers")
_INPUTS_KEY = Key(gguf="embedding_length_per_layer_input", hf="hidden_size_per_layer_input")
_EXPERTS_KEY = Key(gguf="expert_count", hf="num_experts")
_PER_TOKEN_KEY = Key(gguf="expert_used_count", hf="top_k_experts")
_EXPERT_WIDTH_KEY = Key(gguf="expert_feed_forward_length", hf="moe_intermediate_size")


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What one layer is.

    Attributes:
        entry: of the cache that it reads, and writes unless it borrows.
        is_borrowing: it sees the keys and values that an earlier layer wrote.
        keys_are_values: it has no projection for values.
    """

    is_sliding: bool
    head_dim: int
    kv_heads: int
    feed_forward: int
    entry: int
    is_borrowing: bool
    keys_are_values: bool


@dataclass(frozen=True, kw_only=True)
class ExpertNumbers:
    """Of the experts beside each layer's dense feed-forward."""

    count: int
    per_token: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """The numbers that define one gemma4 network.

    Attributes:
        window: how many positions a sliding layer sees.
        rope_base, local_rope_base: of layers that see everything, and of sliding ones.
        inputs: how wide each layer's input of its tokens is; 0 in a network without.
    """

    epsilon: float
    window: int
    rope_base: float
    local_rope_base: float
    inputs: int
    shapes: tuple[LayerShape, ...]
    experts: ExpertNumbers | None

    def head_dim(self, *, is_sliding: bool) -> int:
        """Of layers of this kind; of the others where there are none."""
        return next((one.head_dim for one in self.shapes if one.is_sliding == is_sliding), self.shapes[0].head_dim)


def read_config(checkpoint: Checkpoint, /) -> Gemma4Config:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    numbers = Numbers(checkpoint)
    gemma.refuse_other_networks(numbers)
    # "vision" means the rows of an image, of which a text has none.
    if numbers.format is Format.SAFETENSORS and checkpoint.get("use_bidirectional_attention", str) == "all":
        numbers.refuse("use_bidirectional_attention is 'all', and its texts could not be continued")
    layers = numbers.size(keys.LAYERS, most=numbers.most_layers)
    heads, width = numbers.size(keys.HEADS), numbers.size(keys.WIDTH)
    shapes = _LayerShapes(numbers, layers=layers).read()
    if any(heads % shape.kv_heads or shape.head_dim % 2 for shape in shapes):
        numbers.refuse("heads are not a multiple of kv heads, or a head's width is odd")
    return Gemma4Config(
        architecture="gemma4",
        layers=layers,
        width=width,
        heads=heads,
        feed_forward=max(shape.feed_forward for shape in shapes),
        vocabulary=numbers.vocabulary,
        context=numbers.size(keys.CONTEXT),
        layout=tuple(
            KeysAndValues(kv_heads=shape.kv_heads, head_dim=shape.head_dim)
            for shape in shapes
            if not shape.is_borrowing
        ),
        embedding_scale=width**0.5,
        softcap=gemma.softcap(numbers),
        epsilon=numbers.positive(keys.EPSILON),
        window=numbers.size(keys.WINDOW),
        rope_base=rope_base(numbers, default=1_000_000.0, of=keys.FULL),
        local_rope_base=gemma.local_rope_base(numbers),
        inputs=numbers.size(_INPUTS_KEY) if numbers.get(_INPUTS_KEY, int) else 0,
        shapes=shapes,
        experts=_experts(numbers),
    )


def _experts(numbers: Numbers) -> ExpertNumbers | None:
    is_off = numbers.format is Format.SAFETENSORS and not numbers.checkpoint.get("enable_moe_block", bool)
    if is_off or not numbers.get(_EXPERTS_KEY, int):
        return None
    count = numbers.size(_EXPERTS_KEY, most=numbers.most_experts)
    return ExpertNumbers(
        count=count,
        per_token=numbers.size(_PER_TOKEN_KEY, most=count),
        width=numbers.size(_EXPERT_WIDTH_KEY),
    )


class _LayerShapes:
    """Reads what each layer is; the two formats say it in different ways."""

    def __init__(self, numbers: Numbers, *, layers: int) -> None:
        self._numbers = numbers
        self._layers = layers
        self._is_gguf = numbers.format is Format.GGUF
        self._sliding = sliding_layers(numbers, layers=layers, period=gemma.PERIOD)
        shared = numbers.get(_SHARED_KEY, int) or 0
        if not 0 <= shared < layers:
            numbers.refuse(f"{numbers.name(_SHARED_KEY)} is {shared}, of {layers} layers")
        self._own = layers - shared

    def read(self) -> tuple[LayerShape, ...]:
        """One per layer, in order."""
        local_dim = self._numbers.size(_LOCAL_HEAD_DIM_KEY)
        global_dim = self._global_head_dim()
        without_values = self._without_values()
        rows = zip(self._sliding, self._kv_heads(), self._feed_forwards(), self._entries(), strict=True)
        return tuple(
            LayerShape(
                is_sliding=is_sliding,
                head_dim=local_dim if is_sliding else global_dim,
                kv_heads=kv_heads,
                feed_forward=feed_forward,
                entry=entry,
                is_borrowing=layer >= self._own,
                keys_are_values=without_values and not is_sliding and layer < self._own,
            )
            for layer, (is_sliding, kv_heads, feed_forward, entry) in enumerate(rows)
        )

    def _entries(self) -> Iterator[int]:
        yield from range(self._own)
        for layer in range(self._own, self._layers):
            kind = self._sliding[layer]
            if kind not in self._sliding[: self._own]:
                self._numbers.refuse(f"layer {layer} has no layer before it whose keys and values it could see")
            yield max(own for own in range(self._own) if self._sliding[own] == kind)

    def _kv_heads(self) -> tuple[int, ...]:
        found = self._counted(keys.KV_HEADS)
        if not self._is_gguf and self._keys_are_values:
            fewer = self._of_global_layers("num_key_value_heads") or self._numbers.get(_GLOBAL_KV_HEADS_KEY, int)
            if fewer is not None and fewer < 1:
                self._numbers.refuse(f"layers with full attention have {fewer} kv heads")
            return tuple(
                one if is_sliding or fewer is None else fewer
                for one, is_sliding in zip(found, self._sliding, strict=True)
            )
        return found

    def _feed_forwards(self) -> tuple[int, ...]:
        found = self._counted(keys.FEED_FORWARD)
        if not self._is_gguf and self._numbers.checkpoint.get("use_double_wide_mlp", bool):
            return tuple(2 * one if layer >= self._own else one for layer, one in enumerate(found))
        return found

    def _counted(self, key: Key, /) -> tuple[int, ...]:
        values = self._numbers.per_layer(key, int, layers=self._layers)
        if values is None:
            return (self._numbers.size(key),) * self._layers
        if min(values) < 1:
            self._numbers.refuse(f"{self._numbers.name(key)} is {min(values)}, which is not at least 1")
        return values

    def _global_head_dim(self) -> int:
        found = None if self._is_gguf else self._of_global_layers("head_dim")
        return found or self._numbers.size(_GLOBAL_HEAD_DIM_KEY, default=None if self._is_gguf else _GLOBAL_HEAD_DIM)

    def _of_global_layers(self, name: str) -> int | None:
        """Where transformers 5 says how they differ from the others."""
        layers = (layer for layer, is_sliding in enumerate(self._sliding) if not is_sliding)
        found = {self._numbers.checkpoint.get(f"per_layer_config.{layer}.{name}", int) for layer in layers}
        if len(found) > 1:
            self._numbers.refuse(f"its layers with full attention differ in {name}")
        return found.pop() if found else None

    @property
    def _keys_are_values(self) -> bool:
        return self._numbers.checkpoint.get("attention_k_eq_v", bool) is True

    def _without_values(self) -> bool:
        """Whether layers with full attention have no values of their own; GGUF files say it by having none."""
        if not self._is_gguf:
            return self._keys_are_values
        names = (f"blk.{layer}.attn_v.weight" for layer in range(self._own) if not self._sliding[layer])
        shapes = self._numbers.checkpoint.shapes
        return not any(name in shapes for name in names)
