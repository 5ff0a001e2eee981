"""The exaone4 family: EXAONE 4, both kinds. Norms stand after each part alone, and over each head.

The larger network is a hybrid: most layers see a window of positions and turn their heads, every fourth sees
everything and turns nothing.
Source of the architecture: LG AI Research, 2025 (EXAONE 4.0).
"""

from dataclasses import dataclass

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Block, Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models import numbers as keys
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.numbers import Numbers, sliding_layers
from deployments.lm.models.uniform import (
    UniformConfig,
    attention,
    load_uniform,
    read_uniform,
    usual_attention,
    whole_table,
)
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError

_PERIOD = 4
_LOCAL = "L"


@dataclass(frozen=True, kw_only=True)
class Exaone4Config(UniformConfig):
    """The numbers that define one exaone4 network.

    Attributes:
        window: how many positions a sliding layer sees; `None` where there are no such layers.
        sliding: whether each layer is one.
    """

    window: int | None
    sliding: tuple[bool, ...]


def read_config(checkpoint: Checkpoint, /) -> Exaone4Config:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    usual = read_uniform(checkpoint, architecture="exaone4", runs=("sliding_window", "layer_types"))
    numbers = Numbers(checkpoint)
    window = numbers.size(keys.WINDOW) if numbers.get(keys.WINDOW, int) else None
    sliding = _sliding(numbers, layers=usual.layers, has_window=window is not None)
    if (window is not None) != any(sliding):
        numbers.refuse("it has a sliding window and no layer that uses it, or such a layer and no window")
    return Exaone4Config(**vars(usual), window=window, sliding=sliding)


def weight_table(config: Exaone4Config, /) -> dict[str, Weight]:
    """Where each weight is found."""
    width = config.width
    layer = {
        **usual_attention(config, has_head_norms=True),
        "after_mixer": Weight(shape=(width,), gguf="post_attention_norm.weight", hf="post_attention_layernorm.weight"),
        **assembly.feed_forward_weights(width=width, inner=config.feed_forward),
        "after_feed_forward": Weight(
            shape=(width,), gguf="post_ffw_norm.weight", hf="post_feedforward_layernorm.weight"
        ),
    }
    return whole_table(config, layers=[layer] * config.layers)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_uniform(
        checkpoint,
        config=config,
        table=weight_table(config),
        precision=precision,
        kernels=kernels,
        blocks=lambda parts: [_block(number, parts=parts, config=config) for number in range(config.layers)],
    )


def _block(number: int, *, parts: Assembly, config: Exaone4Config) -> Block:
    at, is_sliding = f"layers.{number}", config.sliding[number]
    is_turned = is_sliding or config.window is None
    return Block(
        entry=number,
        mixer=attention(
            at,
            parts=parts,
            config=config,
            rotary=0 if is_turned else None,
            window=config.window if is_sliding else None,
        ),
        after_mixer=parts.norm(f"{at}.after_mixer"),
        feed_forward=parts.feed_forward(f"{at}.mlp"),
        after_feed_forward=parts.norm(f"{at}.after_feed_forward"),
    )


def _sliding(numbers: Numbers, *, layers: int, has_window: bool) -> tuple[bool, ...]:
    is_listed = numbers.format is Format.SAFETENSORS and keys.LAYER_TYPES.hf in numbers.checkpoint.metadata_keys
    if not has_window and not is_listed:
        return (False,) * layers
    letters = None if is_listed else _letters(numbers)
    if letters is None:
        return sliding_layers(numbers, layers=layers, period=_PERIOD)
    # The last layer always sees everything.
    return tuple(letters[layer % len(letters)] == _LOCAL and layer + 1 < layers for layer in range(layers))


def _letters(numbers: Numbers) -> str | None:
    """The pattern as letters, as the published configurations have it."""
    try:
        letters = numbers.get(keys.PATTERN, str)
    except CheckpointError:
        return None
    if letters is not None and not set(letters) <= set("LG"):
        numbers.refuse(f"its {numbers.name(keys.PATTERN)} is {letters!r:.40}, not a row of L and G")
    return letters or None
