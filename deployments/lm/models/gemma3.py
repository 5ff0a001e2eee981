"""The gemma3 family: Gemma 3's text models. What they see of images is left out.

Source of the architecture: Gemma Team, 2025 (Gemma 3 technical report).
"""

from dataclasses import dataclass

from deployments.lm.cache.layout import KeysAndValues
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight, Weights, plus_one
from deployments.lm.decoder import Block, Decoder, DecoderConfig
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Activation
from deployments.lm.models import assembly, gemma
from deployments.lm.models import numbers as keys
from deployments.lm.models.numbers import Numbers, frequencies, rope_base, rope_factors, sliding_layers
from deployments.lm.models.outline import assembly_of
from deployments.lm.quant.linear import Precision
from deployments.lm.self_attention import SelfAttention

# What the published configurations leave out is what transformers fills in.
_PUBLISHED = {
    keys.HEADS: 8,
    keys.KV_HEADS: 4,
    keys.HEAD_DIM: 256,
    keys.CONTEXT: 131_072,
    keys.WINDOW: 4096,
}
_EPSILON, _BASE = 1e-6, 1_000_000.0
_SCORED_AS = keys.Key(gguf="attention.query_pre_attn_scalar", hf="query_pre_attn_scalar")
# GGUF files say nowhere that the largest model, known by its layers, scales scores as if its heads were narrower.
_LAYERS_OF_27B = 62


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(DecoderConfig):
    """The numbers that define one gemma3 network.

    Attributes:
        score_scale: what attention scores are multiplied by.
        window: how many positions a sliding layer sees.
        sliding: whether each layer is one.
        rope_base, local_rope_base: of layers that see everything, and of sliding ones.
    """

    kv_heads: int
    head_dim: int
    epsilon: float
    score_scale: float
    window: int
    sliding: tuple[bool, ...]
    rope_base: float
    local_rope_base: float


def read_config(checkpoint: Checkpoint, /) -> Gemma3Config:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    numbers = Numbers(checkpoint)
    gemma.refuse_other_networks(numbers)
    numbers.refuse_options("use_bidirectional_attention")
    published = _PUBLISHED if numbers.format is Format.SAFETENSORS else {}
    layers = numbers.size(keys.LAYERS, most=numbers.most_layers)
    width = numbers.size(keys.WIDTH)
    heads = numbers.size(keys.HEADS, default=published.get(keys.HEADS))
    kv_heads = numbers.size(keys.KV_HEADS, default=published.get(keys.KV_HEADS))
    head_dim = numbers.size(keys.HEAD_DIM, default=published.get(keys.HEAD_DIM))
    if heads % kv_heads or head_dim % 2:
        numbers.refuse("heads are not a multiple of kv heads, or a head's width is odd")
    return Gemma3Config(
        architecture="gemma3",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=numbers.size(keys.FEED_FORWARD),
        vocabulary=numbers.vocabulary,
        context=numbers.size(keys.CONTEXT, default=published.get(keys.CONTEXT)),
        layout=(KeysAndValues(kv_heads=kv_heads, head_dim=head_dim),) * layers,
        embedding_scale=width**0.5,
        softcap=gemma.softcap(numbers),
        epsilon=numbers.positive(keys.EPSILON, default=_EPSILON),
        score_scale=_scored_as(numbers, layers=layers, head_dim=head_dim, spread=width / heads) ** -0.5,
        window=numbers.size(keys.WINDOW, default=published.get(keys.WINDOW)),
        sliding=sliding_layers(numbers, layers=layers, period=gemma.PERIOD),
        rope_base=rope_base(numbers, default=_BASE, of=keys.FULL),
        local_rope_base=gemma.local_rope_base(numbers),
    )


def weight_table(config: Gemma3Config, /, *, text: str = "model") -> dict[str, Weight]:
    """Where each weight is found; `text` is what the text model's names begin with."""
    layer = {
        **gemma.norm_weights(width=config.width, from_hf=plus_one),
        **assembly.attention_weights(
            width=config.width, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim
        ),
        **assembly.head_norm_weights(head_dim=config.head_dim, from_hf=plus_one),
        **assembly.feed_forward_weights(width=config.width, inner=config.feed_forward),
    }
    table = assembly.outer_weights(vocabulary=config.vocabulary, width=config.width, hf=text, norm_from_hf=plus_one)
    for number in range(config.layers):
        table |= assembly.layer_weights(layer, number=number, hf=f"{text}.layers")
    return table


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    table = weight_table(config, text=assembly.text_model(checkpoint))
    weights = Weights(checkpoint, table=table, ignored=assembly.is_beside_text)
    parts = assembly_of(weights, precision=precision, kernels=kernels, epsilon=config.epsilon)
    factors = rope_factors(Numbers(checkpoint), base=config.rope_base, dims=config.head_dim, of=keys.FULL)
    outer = parts.outer()
    return Decoder(
        config,
        blocks=[_block(number, parts=parts, config=config) for number in range(config.layers)],
        embedding=outer.embedding,
        norm=outer.norm,
        head=outer.head,
        rotary=[
            frequencies(base=config.rope_base, dims=config.head_dim, factors=factors),
            frequencies(base=config.local_rope_base, dims=config.head_dim),
        ],
    )


def _block(number: int, *, parts: assembly.Assembly, config: Gemma3Config) -> Block:
    at, is_sliding = f"layers.{number}", config.sliding[number]
    return Block(
        entry=number,
        mixer=SelfAttention(
            qkv=parts.linear(f"{at}.q", f"{at}.k", f"{at}.v"),
            output=parts.linear(f"{at}.o"),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            kernels=parts.kernels,
            query_norm=parts.norm(f"{at}.q_norm"),
            key_norm=parts.norm(f"{at}.k_norm"),
            rotary=gemma.LOCAL_TABLE if is_sliding else gemma.GLOBAL_TABLE,
            scale=config.score_scale,
            window=config.window if is_sliding else None,
        ),
        feed_forward_norm=parts.norm(f"{at}.feed_forward_norm"),
        feed_forward=parts.feed_forward(f"{at}.mlp", activation=Activation.GELU),
        **gemma.norms(parts, at=at),
    )


def _scored_as(numbers: Numbers, *, layers: int, head_dim: int, spread: float) -> float:
    """The width of a head that scores are scaled for."""
    if numbers.format is Format.SAFETENSORS:
        return numbers.positive(_SCORED_AS, default=256.0)
    return numbers.positive(_SCORED_AS, default=spread if layers == _LAYERS_OF_27B else float(head_dim))
