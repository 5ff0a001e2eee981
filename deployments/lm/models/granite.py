"""The granite family: the dense networks of IBM's Granite 3. Like llama, with four multipliers in place of ones.

Source of the architecture: IBM Granite Team, 2024 (Granite 3.0 language models).
"""

from dataclasses import replace

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.numbers import Key, Numbers
from deployments.lm.models.uniform import UniformConfig, load_uniform, read_uniform, usual_layer, whole_table
from deployments.lm.quant.linear import Precision

_ATTENTION = Key(gguf="attention.scale", hf="attention_multiplier")
_EMBEDDING = Key(gguf="embedding_scale", hf="embedding_multiplier")
_RESIDUAL = Key(gguf="residual_scale", hf="residual_multiplier")
_LOGITS = Key(gguf="logit_scale", hf="logits_scaling")
_OWN = frozenset(name for key in (_ATTENTION, _EMBEDDING, _RESIDUAL, _LOGITS) for name in (key.gguf, key.hf))


def read_config(checkpoint: Checkpoint, /) -> UniformConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    usual = read_uniform(checkpoint, architecture="granite", runs=_OWN)
    numbers = Numbers(checkpoint)
    # GGUF files without it mean the usual scale, configurations of Hugging Face one.
    scale = 1.0 if numbers.format is Format.SAFETENSORS else usual.head_dim**-0.5
    return replace(
        usual,
        attention_scale=numbers.positive(_ATTENTION, default=scale),
        embedding_scale=numbers.positive(_EMBEDDING, default=1.0),
        residual_scale=numbers.positive(_RESIDUAL, default=1.0),
        logit_scale=1.0 / numbers.positive(_LOGITS, default=1.0),
    )


def weight_table(config: UniformConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    return whole_table(config, layers=[usual_layer(config, is_paired=True)] * config.layers)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_uniform(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)
