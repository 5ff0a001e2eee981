"""Qwen3.5 with experts: like qwen35, with routed experts in every layer and one that all rows share."""

from dataclasses import dataclass

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models.mixture_parts import MixtureNumbers, mixture, mixture_weights, read_mixture
from deployments.lm.models.numbers import Key
from deployments.lm.models.qwen35_config import Qwen35Config, read_qwen35
from deployments.lm.models.qwen35_parts import build_qwen35, table_of
from deployments.lm.quant.linear import Precision

_EXPERT_WIDTH = Key(gguf="expert_feed_forward_length", hf="moe_intermediate_size")


@dataclass(frozen=True, kw_only=True)
class Qwen35MoeConfig(Qwen35Config):
    """The numbers that define one such network; `feed_forward` is one expert's."""

    mixture: MixtureNumbers


def read_config(checkpoint: Checkpoint, /) -> Qwen35MoeConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    usual = read_qwen35(checkpoint, architecture="qwen35moe", feed_forward=_EXPERT_WIDTH)
    return Qwen35MoeConfig(**vars(usual), mixture=read_mixture(checkpoint, normalised=True, has_shared=True))


def weight_table(config: Qwen35MoeConfig, /, *, hf: str) -> dict[str, Weight]:
    """Where each weight is found; `hf` as from `assembly.text_model`."""
    return table_of(config, hf=hf, feed_forward=mixture_weights(config.mixture, width=config.width))


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return build_qwen35(
        checkpoint,
        config=config,
        table=weight_table(config, hf=assembly.text_model(checkpoint)),
        feed_forward=lambda parts, prefix: mixture(prefix, parts=parts, numbers=config.mixture),
        precision=precision,
        kernels=kernels,
    )
