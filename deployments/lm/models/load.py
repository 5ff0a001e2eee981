"""From a checkpoint to a network: the one place that looks at an architecture's name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from flax import nnx

from deployments.lm.checkpoint.outline import Outline
from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.decoder import Decoder, DecoderConfig
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import (
    exaone,
    exaone4,
    gemma3,
    gemma4,
    granite,
    llama,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen35,
    qwen35moe,
)
from deployments.lm.quant.linear import FloatLinear, Precision
from deployments.messages.errors import CheckpointError


class Family(Protocol):
    """What a family's file offers."""

    def read_config(self, checkpoint: Checkpoint, /) -> DecoderConfig: ...

    def load(self, checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder: ...


# By the names of both formats: GGUF's `general.architecture`, Hugging Face's `model_type`.
_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "exaone": exaone,
        "exaone4": exaone4,
        "gemma3": gemma3,
        "gemma3_text": gemma3,
        "gemma4": gemma4,
        "gemma4_text": gemma4,
        "granite": granite,
        "llama": llama,
        "mistral": llama,
        "qwen2": qwen2,
        "qwen2_moe": qwen2moe,
        "qwen2moe": qwen2moe,
        "qwen3": qwen3,
        "qwen35": qwen35,
        "qwen35moe": qwen35moe,
        "qwen3_5": qwen35,
        "qwen3_5_moe": qwen35moe,
        "qwen3_5_moe_text": qwen35moe,
        "qwen3_5_text": qwen35,
        "qwen3_moe": qwen3moe,
        "qwen3moe": qwen3moe,
    }
)


def family_of(checkpoint: Checkpoint, /) -> Family:
    """Raises `CheckpointError` for an architecture this version does not know."""
    family = _FAMILIES.get(checkpoint.architecture)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise CheckpointError(f"{checkpoint.name} is a '{checkpoint.architecture}' model; this version runs: {known}")
    return family


def read_config(checkpoint: Checkpoint, /) -> DecoderConfig:
    """The network's numbers, from the header alone. Raises `CheckpointError`."""
    return family_of(checkpoint).read_config(checkpoint)


def load_network(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Decoder:
    """Raises `CheckpointError` for an architecture this version does not know, and for a broken file."""
    return family_of(checkpoint).load(checkpoint, precision=precision, kernels=kernels)


def outline_network(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Decoder:
    """The network that `load_network` makes, its leaves `jax.ShapeDtypeStruct`: no weight is read, and none need exist.

    Raises `CheckpointError` as that does, but for what is wrong with values.
    """
    outlined = Outline(checkpoint)
    is_shared = False

    def traced() -> Decoder:
        nonlocal is_shared
        network = load_network(outlined, precision=precision, kernels=kernels)
        is_shared = _is_shared(network)
        return network

    network: Decoder = nnx.eval_shape(traced)
    if is_shared and isinstance(network.head, FloatLinear):
        network.head.weight.set_raw_value(network.embedding.table.get_raw_value())
    return network


def _is_shared(network: Decoder) -> bool:
    """Whether the table is embedding and head, in the same memory."""
    head = network.head
    return isinstance(head, FloatLinear) and head.weight.get_raw_value() is network.embedding.table.get_raw_value()
