"""What dense Qwen3.5 networks and those of experts share: the weights of their layers, and how the layers are built.

Canonical weights are Hugging Face's. GGUF files keep heads of values by their number within a key head first
("tiled"), and `-exp(A_log)` for `A_log`.
"""

from collections.abc import Callable, Mapping

import numpy as np

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Change, Tensor, Weight, Weights, plus_one
from deployments.lm.decoder import Block, Decoder, FeedForward, Mixer
from deployments.lm.delta import GatedDeltaNet
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.numbers import Numbers, frequencies, rope_factors
from deployments.lm.models.outline import assembly_of
from deployments.lm.models.qwen35_config import Qwen35Config, drafting_layers
from deployments.lm.quant.linear import Precision
from deployments.lm.self_attention import SelfAttention

type BuildFeedForward = Callable[[Assembly, str], FeedForward]


def table_of(config: Qwen35Config, /, *, hf: str, feed_forward: Mapping[str, Weight]) -> dict[str, Weight]:
    """Where each weight of such a network is found.

    Args:
        hf: what the names of the text model's tensors begin with.
        feed_forward: the weights of a layer's, as they are named inside a layer.
    """
    table = assembly.outer_weights(
        vocabulary=config.vocabulary, width=config.width, hf=hf, norm_from_hf=plus_one, is_tied=config.is_tied
    )
    norms = {
        "mixer_norm": _norm(config.width, gguf="attn_norm", hf="input_layernorm"),
        "feed_forward_norm": _norm(config.width, gguf="post_attention_norm", hf="post_attention_layernorm"),
    }
    for number in range(config.layers):
        mixer = _attention_weights(config) if number in config.full else _delta_weights(config)
        table |= assembly.layer_weights({**norms, **mixer, **feed_forward}, number=number, hf=f"{hf}.layers")
    return table


def build_qwen35(
    checkpoint: Checkpoint,
    *,
    config: Qwen35Config,
    table: Mapping[str, Weight],
    feed_forward: BuildFeedForward,
    precision: Precision,
    kernels: Kernels,
) -> Decoder:
    """The network.

    Args:
        feed_forward: makes a layer's, given its weights' prefix.
    """
    drafting = range(config.layers, config.layers + drafting_layers(Numbers(checkpoint)))
    weights = Weights(checkpoint, table=table, ignored=lambda name: _is_ignored(name, drafting=drafting))
    parts = assembly_of(weights, precision=precision, kernels=kernels, epsilon=config.epsilon)
    factors = rope_factors(Numbers(checkpoint), base=config.rope_base, dims=config.rope_dims)

    def block(number: int) -> Block:
        at = f"layers.{number}"
        mixer: Mixer = (
            _attention(at, parts=parts, config=config)
            if number in config.full
            else _delta(at, parts=parts, config=config)
        )
        return Block(
            entry=number,
            mixer_norm=parts.norm(f"{at}.mixer_norm"),
            mixer=mixer,
            feed_forward_norm=parts.norm(f"{at}.feed_forward_norm"),
            feed_forward=feed_forward(parts, f"{at}.mlp"),
        )

    outer = parts.outer()
    return Decoder(
        config,
        blocks=[block(number) for number in range(config.layers)],
        embedding=outer.embedding,
        norm=outer.norm,
        head=outer.head,
        rotary=[frequencies(base=config.rope_base, dims=config.rope_dims, factors=factors)],
    )


def _attention(at: str, *, parts: Assembly, config: Qwen35Config) -> SelfAttention:
    return SelfAttention(
        qkv=parts.linear(f"{at}.q", f"{at}.k", f"{at}.v"),
        output=parts.linear(f"{at}.o"),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        kernels=parts.kernels,
        query_norm=parts.norm(f"{at}.q_norm"),
        key_norm=parts.norm(f"{at}.k_norm"),
        is_gated=True,
    )


def _delta(at: str, *, parts: Assembly, config: Qwen35Config) -> GatedDeltaNet:
    return GatedDeltaNet(
        inputs=parts.linear(f"{at}.qkv", f"{at}.z"),
        # Few and cheap, and their errors add up over a whole sequence.
        gates=parts.exact_linear(f"{at}.beta", f"{at}.alpha"),
        rates=parts.vector(f"{at}.rates"),
        bias=parts.vector(f"{at}.bias"),
        kernel=parts.turned(f"{at}.kernel"),
        norm=parts.norm(f"{at}.value_norm"),
        output=parts.linear(f"{at}.out"),
        key_heads=config.key_heads,
        shape=config.recurrent,
        kernels=parts.kernels,
    )


def _attention_weights(config: Qwen35Config) -> dict[str, Weight]:
    table = assembly.attention_weights(
        width=config.width, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim
    )
    split = _gates_last(heads=config.heads)
    gated = Weight(
        shape=(2 * config.heads * config.head_dim, config.width),
        gguf="attn_q.weight",
        hf="self_attn.q_proj.weight",
        from_gguf=split,
        from_hf=split,
    )
    return {**table, "q": gated, **assembly.head_norm_weights(head_dim=config.head_dim, from_hf=plus_one)}


def _delta_weights(config: Qwen35Config) -> dict[str, Weight]:
    shape, width = config.recurrent, config.width
    keys, values = 2 * config.key_heads * shape.key_dim, shape.heads * shape.value_dim
    whole = _grouped(config, size=shape.value_dim)
    each = _grouped(config, size=1)
    inner = _grouped(config, size=shape.value_dim, first=keys)
    channels, taps = shape.channels, shape.taps

    def weight(*sizes: int, gguf: str, hf: str, from_gguf: Change) -> Weight:
        return Weight(shape=sizes, gguf=gguf, hf=f"linear_attn.{hf}", from_gguf=from_gguf)

    return {
        "qkv": weight(channels, width, gguf="attn_qkv.weight", hf="in_proj_qkv.weight", from_gguf=inner),
        "z": weight(values, width, gguf="attn_gate.weight", hf="in_proj_z.weight", from_gguf=whole),
        "alpha": weight(shape.heads, width, gguf="ssm_alpha.weight", hf="in_proj_a.weight", from_gguf=each),
        "beta": weight(shape.heads, width, gguf="ssm_beta.weight", hf="in_proj_b.weight", from_gguf=each),
        "bias": weight(shape.heads, gguf="ssm_dt.bias", hf="dt_bias", from_gguf=each),
        "out": weight(
            width, values, gguf="ssm_out.weight", hf="out_proj.weight", from_gguf=lambda stored: whole(stored.T).T
        ),
        "rates": Weight(shape=(shape.heads,), gguf="ssm_a", hf="linear_attn.A_log", from_gguf=each, from_hf=_rates),
        "kernel": Weight(
            shape=(channels, taps),
            gguf="ssm_conv1d.weight",
            hf="linear_attn.conv1d.weight",
            from_gguf=inner,
            from_hf=lambda stored: stored[:, 0],
            hf_shape=(channels, 1, taps),
        ),
        "value_norm": Weight(shape=(shape.value_dim,), gguf="ssm_norm.weight", hf="linear_attn.norm.weight"),
    }


def _norm(width: int, *, gguf: str, hf: str) -> Weight:
    return Weight(shape=(width,), gguf=f"{gguf}.weight", hf=f"{hf}.weight", from_hf=plus_one)


def _gates_last(*, heads: int) -> Change:
    """From each head's query and gate in turn to all queries, then all gates."""
    return lambda stored: stored.reshape(heads, 2, -1, stored.shape[-1]).swapaxes(0, 1).reshape(stored.shape)


def _grouped(config: Qwen35Config, *, size: int, first: int = 0) -> Change:
    """Puts heads of values that share a key head side by side.

    Args:
        size: rows of a head.
        first: rows before the first of them.
    """

    def change(stored: Tensor) -> Tensor:
        heads = stored[first:].reshape(-1, config.key_heads, size, *stored.shape[1:])
        grouped = heads.swapaxes(0, 1).reshape(stored[first:].shape)
        return np.concatenate([stored[:first], grouped])

    return change


def _rates(logarithms: Tensor) -> Tensor:
    # Rounded once, as the converter's are: the same model has the same bits in either format.
    return -np.exp(logarithms.astype(np.float64)).astype(np.float32)


def _is_ignored(name: str, *, drafting: range) -> bool:
    """Whether a tensor belongs to the layers that draft, or to what sees."""
    start, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    is_drafting = start == "mtp" or (start == "blk" and number.isdecimal() and int(number) in drafting)
    return is_drafting or assembly.is_beside_text(name)
