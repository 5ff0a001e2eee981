"""Networks whose layers are alike: the numbers, weights and blocks of the families that differ from llama in little.

A family says where it differs. Options that would make another network are refused by name, never passed over.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from deployments.lm.cache.layout import KeysAndValues
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight, Weights
from deployments.lm.decoder import Block, Decoder, DecoderConfig
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models import numbers as keys
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.numbers import FULL, Key, Numbers, frequencies, rope_base, rope_factors
from deployments.lm.models.outline import assembly_of
from deployments.lm.quant.linear import Precision
from deployments.lm.self_attention import SelfAttention

_VALUE_DIM = Key(gguf="attention.value_length", hf="v_head_dim")
_SILU = ("silu", "swish")
# What some network of a known architecture may ask for and none of these computes: off, or refused.
_OFF = (
    "attention_bias",
    "mlp_bias",
    "use_bias",
    "use_sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "clip_qkv",
    "num_local_experts",
    "expert_count",
    "num_experts",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention_multiplier",
    "embedding_scale",
    "embedding_multiplier",
    "residual_scale",
    "residual_multiplier",
    "logit_scale",
    "logits_scaling",
    "nextn_predict_layers",
)


@dataclass(frozen=True, kw_only=True)
class UniformConfig(DecoderConfig):
    """The numbers that define one such network.

    Attributes:
        is_tied: the head is the embedding's table.
        attention_scale: what attention scores are multiplied by; `None` means head_dim ** -0.5.
        residual_scale: what each part of a layer is multiplied by.
    """

    kv_heads: int
    head_dim: int
    rope_base: float
    epsilon: float
    is_tied: bool
    attention_scale: float | None = None
    residual_scale: float = 1.0


def read_uniform(
    checkpoint: Checkpoint,
    /,
    *,
    architecture: str,
    layers: Key = keys.LAYERS,
    epsilon: Key = keys.EPSILON,
    activation: str = "hidden_act",
    runs: Collection[str] = (),
) -> UniformConfig:
    """The usual numbers.

    Args:
        layers, epsilon, activation: where the family keeps them, if not where most do.
        runs: options that the family takes care of itself.

    Raises:
        CheckpointError: one is missing, absurd, or asks for what this version does not run.
    """
    numbers = Numbers(checkpoint)
    numbers.refuse_options(*(name for name in _OFF if name not in runs))
    _refuse_values(numbers, activation=activation, runs=runs)
    count = numbers.size(layers, most=numbers.most_layers)
    width, heads = numbers.size(keys.WIDTH), numbers.size(keys.HEADS)
    kv_heads = numbers.size(keys.KV_HEADS, default=heads)
    head_dim = numbers.size(keys.HEAD_DIM, default=max(width // heads, 1))
    if heads % kv_heads or head_dim % 2:
        numbers.refuse("heads are not a multiple of kv heads, or a head's width is odd")
    if {numbers.size(key, default=head_dim) for key in (keys.ROPE_DIMS, _VALUE_DIM)} != {head_dim}:
        numbers.refuse("not all of a head is rotated, or its values have another width than its keys")
    return UniformConfig(
        architecture=architecture,
        layers=count,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=numbers.size(keys.FEED_FORWARD),
        vocabulary=numbers.vocabulary,
        context=numbers.size(keys.CONTEXT),
        layout=(KeysAndValues(kv_heads=kv_heads, head_dim=head_dim),) * count,
        rope_base=rope_base(numbers),
        epsilon=numbers.positive(epsilon),
        is_tied=assembly.is_tied(numbers),
    )


def usual_layer(
    config: UniformConfig, /, *, is_paired: bool = False, has_bias: bool = False, has_head_norms: bool = False
) -> dict[str, Weight]:
    """The weights of a layer as most families have it; arguments as in `assembly.attention_weights`."""
    return {
        **assembly.block_norm_weights(width=config.width),
        **usual_attention(config, is_paired=is_paired, has_bias=has_bias, has_head_norms=has_head_norms),
        **assembly.feed_forward_weights(width=config.width, inner=config.feed_forward),
    }


def usual_attention(
    config: UniformConfig, /, *, is_paired: bool = False, has_bias: bool = False, has_head_norms: bool = False
) -> dict[str, Weight]:
    """Those of its attention alone."""
    weights = assembly.attention_weights(
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        is_paired=is_paired,
        has_bias=has_bias,
    )
    return weights | (assembly.head_norm_weights(head_dim=config.head_dim) if has_head_norms else {})


def whole_table(config: UniformConfig, /, *, layers: Sequence[Mapping[str, Weight]]) -> dict[str, Weight]:
    """Every weight of a network, from the weights of each layer."""
    table = assembly.outer_weights(vocabulary=config.vocabulary, width=config.width, is_tied=config.is_tied)
    for number, layer in enumerate(layers):
        table |= assembly.layer_weights(layer, number=number)
    return table


def attention(
    at: str, /, *, parts: Assembly, config: UniformConfig, rotary: int | None = 0, window: int | None = None
) -> SelfAttention:
    """A layer's attention, with biases and norms of heads where the family has them."""
    has_bias, has_head_norms = (parts.weights.has(f"{at}.{name}") for name in ("q_bias", "q_norm"))
    return SelfAttention(
        qkv=parts.linear(f"{at}.q", f"{at}.k", f"{at}.v"),
        bias=parts.vector(f"{at}.q_bias", f"{at}.k_bias", f"{at}.v_bias") if has_bias else None,
        output=parts.linear(f"{at}.o"),
        query_norm=parts.norm(f"{at}.q_norm") if has_head_norms else None,
        key_norm=parts.norm(f"{at}.k_norm") if has_head_norms else None,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        kernels=parts.kernels,
        rotary=rotary,
        scale=config.attention_scale,
        window=window,
    )


def load_uniform(
    checkpoint: Checkpoint,
    *,
    config: UniformConfig,
    table: Mapping[str, Weight],
    precision: Precision,
    kernels: Kernels,
    blocks: Callable[[Assembly], Sequence[Block]] | None = None,
) -> Decoder:
    """The network in `precision`.

    Args:
        blocks: makes the layers; `None` makes them as most families have them.

    Raises:
        CheckpointError: with everything that is wrong with its tensors.
    """
    weights = Weights(checkpoint, table=table, ignored=assembly.is_derived)
    parts = assembly_of(weights, precision=precision, kernels=kernels, epsilon=config.epsilon)
    factors = rope_factors(Numbers(checkpoint), base=config.rope_base, dims=config.head_dim)
    outer = parts.outer()
    return Decoder(
        config,
        blocks=_usual_blocks(parts, config=config) if blocks is None else blocks(parts),
        embedding=outer.embedding,
        norm=outer.norm,
        head=outer.head,
        rotary=[frequencies(base=config.rope_base, dims=config.head_dim, factors=factors)],
    )


def _usual_blocks(parts: Assembly, *, config: UniformConfig) -> list[Block]:
    return [_usual_block(number, parts=parts, config=config) for number in range(config.layers)]


def _usual_block(number: int, *, parts: Assembly, config: UniformConfig) -> Block:
    """A layer with a norm before each part, and a dense feed-forward."""
    at = f"layers.{number}"
    return Block(
        entry=number,
        mixer_norm=parts.norm(f"{at}.mixer_norm"),
        mixer=attention(at, parts=parts, config=config),
        feed_forward_norm=parts.norm(f"{at}.feed_forward_norm"),
        feed_forward=parts.feed_forward(f"{at}.mlp"),
        residual_scale=config.residual_scale,
    )


def _refuse_values(numbers: Numbers, *, activation: str, runs: Collection[str]) -> None:
    """Options that are on or off by other values than zero."""
    checkpoint = numbers.checkpoint
    if numbers.format is Format.GGUF:
        window = numbers.get(keys.WINDOW, int) or 0
        if window and "sliding_window" not in runs and window < numbers.size(keys.CONTEXT):
            numbers.refuse_options(keys.WINDOW.gguf)
        if checkpoint.get(f"{checkpoint.architecture}.attention.causal", bool) is False:
            numbers.refuse("its attention looks ahead (attention.causal is false)")
        if checkpoint.get(f"{checkpoint.architecture}.rope.scaling.attn_factor", float) not in (None, 0.0, 1.0):
            numbers.refuse_options("rope.scaling.attn_factor")
        return
    bent = checkpoint.get(activation, str)
    if bent not in (None, *_SILU):
        numbers.refuse_options(activation)
    for key in ("partial_rotary_factor", "rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor"):
        if checkpoint.get(key, float) not in (None, 1.0):
            numbers.refuse_options(key)
    kinds = checkpoint.get(keys.LAYER_TYPES.hf, list) or []
    if "layer_types" not in runs and any(kind != FULL for kind in kinds):
        numbers.refuse_options(keys.LAYER_TYPES.hf)
