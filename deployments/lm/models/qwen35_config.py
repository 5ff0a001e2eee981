"""The numbers of Qwen3.5 networks and of what else has their shape (Qwen3.8 27B), from either format.

Source of the architecture: the Qwen team, 2026; Gated Attention (Qiu et al., 2025), Gated Delta Networks (Yang et al.,
2024).
"""

from dataclasses import dataclass

from deployments.lm.cache.layout import KeysAndValues, Layout, Recurrent
from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.decoder import DecoderConfig
from deployments.lm.models import assembly
from deployments.lm.models import numbers as keys
from deployments.lm.models.numbers import FULL, Key, Numbers, rope_base

_LINEAR = "linear_attention"
_RECURRENT_LAYERS = Key(gguf="attention.recurrent_layers", hf="layer_types")
_INTERVAL = Key(gguf="full_attention_interval", hf="full_attention_interval")
_TAPS = Key(gguf="ssm.conv_kernel", hf="linear_conv_kernel_dim")
# A program has a product for each; networks have four.
_MOST_TAPS = 64
_KEY_DIM = Key(gguf="ssm.state_size", hf="linear_key_head_dim")
_KEY_HEADS = Key(gguf="ssm.group_count", hf="linear_num_key_heads")
_VALUE_HEADS = Key(gguf="ssm.time_step_rank", hf="linear_num_value_heads")
_VALUE_WIDTH = "ssm.inner_size"
_VALUE_DIM = "linear_value_head_dim"
_DRAFTING_LAYERS = Key(gguf="nextn_predict_layers", hf="mtp_num_hidden_layers")
_OFF = ("attention_bias", "attention.scale", "attn_logit_softcapping", "final_logit_softcapping", "mlp_only_layers")


@dataclass(frozen=True, kw_only=True)
class Qwen35Config(DecoderConfig):
    """The numbers that define one such network.

    Attributes:
        rope_dims: how many of a head's dimensions are rotated.
        is_tied: the head is the embedding's table.
        key_heads: of the gated delta nets; their values have `recurrent.heads`.
        full: the layers with attention.
    """

    kv_heads: int
    head_dim: int
    rope_base: float
    rope_dims: int
    epsilon: float
    is_tied: bool
    key_heads: int
    recurrent: Recurrent
    full: frozenset[int]


def read_qwen35(checkpoint: Checkpoint, /, *, architecture: str, feed_forward: Key = keys.FEED_FORWARD) -> Qwen35Config:
    """The network's numbers.

    Args:
        feed_forward: where the width of the feed-forward, or of one expert, is kept.

    Raises:
        CheckpointError: one is missing, absurd, or asks for what this version does not run.
    """
    numbers = Numbers(checkpoint)
    numbers.refuse_options(*_OFF)
    if checkpoint.get("attn_output_gate", bool) is False or (checkpoint.get("hidden_act", str) or "silu") != "silu":
        numbers.refuse("attn_output_gate is off or hidden_act is not silu, which no network of this kind has")
    layers, heads, kv_heads = _layers(numbers), numbers.size(keys.HEADS), numbers.size(keys.KV_HEADS)
    head_dim = numbers.size(keys.HEAD_DIM)
    rope_dims = _rope_dims(numbers, head_dim=head_dim)
    if heads % kv_heads or rope_dims % 2 or not 0 < rope_dims <= head_dim:
        numbers.refuse("heads are not a multiple of kv heads, or what is rotated of a head is odd or more than all")
    key_heads = numbers.size(_KEY_HEADS)
    recurrent = _recurrent(numbers, key_heads=key_heads)
    full = _full(numbers, layers=layers)
    kept = KeysAndValues(kv_heads=kv_heads, head_dim=head_dim)
    layout: Layout = tuple(kept if layer in full else recurrent for layer in range(layers))
    return Qwen35Config(
        architecture=architecture,
        layers=layers,
        width=numbers.size(keys.WIDTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=numbers.size(feed_forward),
        vocabulary=numbers.vocabulary,
        context=numbers.size(keys.CONTEXT),
        layout=layout,
        rope_base=rope_base(numbers),
        rope_dims=rope_dims,
        epsilon=numbers.positive(keys.EPSILON),
        is_tied=assembly.is_tied(numbers),
        key_heads=key_heads,
        recurrent=recurrent,
        full=full,
    )


def drafting_layers(numbers: Numbers, /) -> int:
    """How many of a GGUF file's layers draft; Hugging Face's tensors of those have names of their own."""
    return (numbers.get(_DRAFTING_LAYERS, int) or 0) if numbers.format is Format.GGUF else 0


def _layers(numbers: Numbers) -> int:
    """GGUF files count the layers that draft, which come last, with the others."""
    layers, drafting = numbers.size(keys.LAYERS, most=numbers.most_layers), drafting_layers(numbers)
    if not 0 <= drafting < layers:
        numbers.refuse(f"{numbers.name(_DRAFTING_LAYERS)} is {drafting} of {layers} layers")
    return layers - drafting


def _rope_dims(numbers: Numbers, *, head_dim: int) -> int:
    if numbers.format is Format.GGUF:
        return numbers.size(keys.ROPE_DIMS, default=head_dim, most=head_dim)
    names = ("rope_parameters.partial_rotary_factor", "partial_rotary_factor")
    shares = [share for name in names if (share := numbers.checkpoint.get(name, float)) is not None]
    return int(head_dim * (shares[0] if shares else 0.25))


def _recurrent(numbers: Numbers, *, key_heads: int) -> Recurrent:
    heads, key_dim = numbers.size(_VALUE_HEADS), numbers.size(_KEY_DIM)
    if numbers.format is Format.GGUF:
        value_dim, rest = divmod(numbers.checkpoint.require(numbers.name(Key(gguf=_VALUE_WIDTH, hf="")), int), heads)
    else:
        value_dim, rest = numbers.size(Key(gguf="", hf=_VALUE_DIM)), 0
    taps = numbers.size(_TAPS, most=_MOST_TAPS)
    if heads % key_heads or rest or value_dim < 1 or taps < 2:
        numbers.refuse("value heads are not a multiple of key heads, do not share their width, or there is no past")
    channels = 2 * key_heads * key_dim + heads * value_dim
    return Recurrent(heads=heads, key_dim=key_dim, value_dim=value_dim, channels=channels, taps=taps)


def _full(numbers: Numbers, *, layers: int) -> frozenset[int]:
    """The layers with attention: listed, or every so many."""
    listed = numbers.get(_RECURRENT_LAYERS, list)
    if listed is None:
        interval = numbers.size(_INTERVAL, default=4)
        return frozenset(layer for layer in range(layers) if (layer + 1) % interval == 0)
    known = (False, True) if numbers.format is Format.GGUF else (FULL, _LINEAR)
    if len(listed) < layers or any(kind not in known for kind in listed):
        numbers.refuse(f"{numbers.name(_RECURRENT_LAYERS)} does not say of each of {layers} layers which kind it is")
    return frozenset(layer for layer in range(layers) if listed[layer] == known[0])
