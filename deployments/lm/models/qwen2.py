"""The qwen2 family: Qwen 2 and 2.5. Like llama, with biases on queries, keys and values.

Source of the architecture: Yang et al., 2024 (Qwen2 technical report).
"""

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.uniform import UniformConfig, load_uniform, read_uniform, usual_layer, whole_table
from deployments.lm.quant.linear import Precision


def read_config(checkpoint: Checkpoint, /) -> UniformConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    return read_uniform(checkpoint, architecture="qwen2")


def weight_table(config: UniformConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    return whole_table(config, layers=[usual_layer(config, has_bias=True)] * config.layers)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_uniform(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)
