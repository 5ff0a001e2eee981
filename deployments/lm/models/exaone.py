"""The exaone family: EXAONE 3 and 3.5. Llama's network; Hugging Face's tensors and numbers have names of their own.

Source of the architecture: LG AI Research, 2024 (EXAONE 3.0 instruction tuned language model).
"""

from dataclasses import replace

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import numbers as keys
from deployments.lm.models.numbers import Key
from deployments.lm.models.uniform import UniformConfig, load_uniform, read_uniform, usual_layer, whole_table
from deployments.lm.quant.linear import Precision

_LAYERS = Key(gguf=keys.LAYERS.gguf, hf="num_layers")
_EPSILON = Key(gguf=keys.EPSILON.gguf, hf="layer_norm_epsilon")
# Llama's names of modules to this family's, the longer first.
_MODULES = {
    "model.embed_tokens.": "transformer.wte.",
    "model.norm.": "transformer.ln_f.",
    "model.layers.": "transformer.h.",
    ".input_layernorm.": ".ln_1.",
    ".post_attention_layernorm.": ".ln_2.",
    ".self_attn.o_proj.": ".attn.attention.out_proj.",
    ".self_attn.": ".attn.attention.",
    ".gate_proj.": ".c_fc_0.",
    ".up_proj.": ".c_fc_1.",
    ".down_proj.": ".c_proj.",
}


def read_config(checkpoint: Checkpoint, /) -> UniformConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    return read_uniform(
        checkpoint, architecture="exaone", layers=_LAYERS, epsilon=_EPSILON, activation="activation_function"
    )


def weight_table(config: UniformConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    table = whole_table(config, layers=[usual_layer(config)] * config.layers)
    return {name: replace(weight, hf=_renamed(weight.hf)) for name, weight in table.items()}


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_uniform(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)


def _renamed(name: str | None) -> str | None:
    for usual, own in _MODULES.items():
        name = None if name is None else name.replace(usual, own)
    return name
