"""Qwen3.5, dense: gated delta nets, and gated attention in every fourth layer. Also what Qwen3.8 27B is.

The layers that draft (`mtp`, `nextn`) and the part that sees are left in the file.
"""

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models.qwen35_config import Qwen35Config, read_qwen35
from deployments.lm.models.qwen35_parts import build_qwen35, table_of
from deployments.lm.quant.linear import Precision


def read_config(checkpoint: Checkpoint, /) -> Qwen35Config:
    """The network's numbers. Raises `CheckpointError` for one that is missing or absurd."""
    return read_qwen35(checkpoint, architecture="qwen35")


def weight_table(config: Qwen35Config, /, *, hf: str) -> dict[str, Weight]:
    """Where each weight is found; `hf` as from `assembly.text_model`."""
    return table_of(
        config, hf=hf, feed_forward=assembly.feed_forward_weights(width=config.width, inner=config.feed_forward)
    )


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return build_qwen35(
        checkpoint,
        config=config,
        table=weight_table(config, hf=assembly.text_model(checkpoint)),
        feed_forward=lambda parts, prefix: parts.feed_forward(prefix),
        precision=precision,
        kernels=kernels,
    )
