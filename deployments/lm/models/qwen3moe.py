"""The qwen3moe family: Qwen 3 with experts. Like qwen3, with routed experts and none that all rows share.

Source of the architecture: Yang et al., 2025 (Qwen3 technical report).
"""

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.sparse import SparseConfig, load_sparse, read_sparse, sparse_table
from deployments.lm.quant.linear import Precision


def read_config(checkpoint: Checkpoint, /) -> SparseConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    # Every published network says so; GGUF files leave it to the architecture.
    normalised = checkpoint.format is Format.GGUF
    return read_sparse(checkpoint, architecture="qwen3moe", normalised=normalised, has_head_norms=True)


def weight_table(config: SparseConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    return sparse_table(config)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_sparse(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)
