"""What the Gemma families share beyond the parts of every family: their four norms, two rotary tables, one activation.

Source of the architecture: Gemma Team, 2025 (Gemma 3 technical report).
"""

from typing import TypedDict

from deployments.lm.checkpoint.source import Format
from deployments.lm.checkpoint.weights import Change, Weight
from deployments.lm.layers import RMSNorm
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.numbers import SLIDING, Key, Numbers, rope_base

# Rotary tables by number: of layers that see everything, and of sliding ones.
GLOBAL_TABLE, LOCAL_TABLE = 0, 1
# Every how manyth layer sees everything, where a checkpoint does not say.
PERIOD = 6
_LOCAL_BASE = Key(gguf="rope.freq_base_swa", hf="rope_local_base_freq")
_SOFTCAP = Key(gguf="final_logit_softcapping", hf="final_logit_softcapping")
_NORMS = {
    "mixer_norm": ("attn_norm", "input_layernorm"),
    "after_mixer": ("post_attention_norm", "post_attention_layernorm"),
    "feed_forward_norm": ("ffn_norm", "pre_feedforward_layernorm"),
    "after_feed_forward": ("post_ffw_norm", "post_feedforward_layernorm"),
}


class Norms(TypedDict):
    """Of a block, but the one before its feed-forward: Gemma 4's experts take the stream as it is."""

    mixer_norm: RMSNorm
    after_mixer: RMSNorm
    after_feed_forward: RMSNorm


def norm_weights(*, width: int, from_hf: Change | None = None) -> dict[str, Weight]:
    """The norms before and after a layer's attention and its feed-forward."""
    return {
        name: Weight(shape=(width,), gguf=f"{gguf}.weight", hf=f"{hf}.weight", from_hf=from_hf)
        for name, (gguf, hf) in _NORMS.items()
    }


def norms(parts: Assembly, /, *, at: str) -> Norms:
    """A block's, read."""
    return Norms(
        mixer_norm=parts.norm(f"{at}.mixer_norm"),
        after_mixer=parts.norm(f"{at}.after_mixer"),
        after_feed_forward=parts.norm(f"{at}.after_feed_forward"),
    )


def refuse_other_networks(numbers: Numbers, /) -> None:
    """Raises `CheckpointError` for what no Gemma checkpoint known here asks for."""
    numbers.refuse_options("attn_logit_softcapping", "attention_bias")
    if numbers.format is Format.SAFETENSORS:
        activation = numbers.checkpoint.get("hidden_activation", str)
        if activation not in (None, "gelu_pytorch_tanh"):
            numbers.refuse(f"its hidden_activation is {activation}, not gelu_pytorch_tanh")


def local_rope_base(numbers: Numbers, /) -> float:
    """The rotary base of sliding layers; older GGUF files do not have it."""
    if numbers.format is Format.SAFETENSORS:
        kind = numbers.checkpoint.get(f"rope_parameters.{SLIDING}.rope_type", str)
        if kind not in (None, "default"):
            numbers.refuse(f"its sliding layers use rope scaling '{kind}'")
    return rope_base(numbers, key=_LOCAL_BASE, default=10_000.0, of=SLIDING)


def softcap(numbers: Numbers, /) -> float | None:
    """What the head's scores are bent to stay within."""
    return numbers.positive(_SOFTCAP) if numbers.get(_SOFTCAP, float) else None
