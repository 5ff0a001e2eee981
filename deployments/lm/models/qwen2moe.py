"""The qwen2moe family: Qwen 1.5 and 2 with experts. Like qwen2, with routed experts and one that all rows share.

Source of the architecture: Qwen Team, 2024 (Qwen1.5-MoE; Qwen2 technical report).
"""

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Decoder
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models.sparse import SparseConfig, load_sparse, read_sparse, sparse_table
from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError


def read_config(checkpoint: Checkpoint, /) -> SparseConfig:
    """The network's numbers. Raises `CheckpointError` for one that is missing, absurd or not computed here."""
    if "qkv_bias" in checkpoint.metadata_keys and checkpoint.get("qkv_bias", bool) is False:
        raise CheckpointError(f"{checkpoint.name} sets qkv_bias to false, which this version does not run")
    return read_sparse(checkpoint, architecture="qwen2moe", normalised=False, has_shared=True, has_bias=True)


def weight_table(config: SparseConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    return sparse_table(config)


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    return load_sparse(checkpoint, config=config, table=weight_table(config), precision=precision, kernels=kernels)
