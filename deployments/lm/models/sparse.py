"""Networks like those of `uniform` whose layers, or most of them, have experts: what qwen2moe and qwen3moe share."""

from dataclasses import dataclass

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.decoder import Block, Decoder, FeedForward
from deployments.lm.kernels.choice import Kernels
from deployments.lm.models import assembly
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.mixture_parts import MixtureNumbers, mixture, mixture_weights, read_mixture
from deployments.lm.models.numbers import Numbers
from deployments.lm.models.uniform import (
    UniformConfig,
    attention,
    load_uniform,
    read_uniform,
    usual_attention,
    whole_table,
)
from deployments.lm.quant.linear import Precision

_OWN = ("num_experts", "expert_count")


@dataclass(frozen=True, kw_only=True)
class SparseConfig(UniformConfig):
    """The numbers that define one such network.

    Attributes:
        has_experts: whether each layer's feed-forward is a mixture.
        has_bias, has_head_norms: as for `uniform.usual_attention`.
    """

    mixture: MixtureNumbers
    has_experts: tuple[bool, ...]
    has_bias: bool
    has_head_norms: bool


def read_sparse(
    checkpoint: Checkpoint,
    /,
    *,
    architecture: str,
    normalised: bool,
    has_shared: bool = False,
    has_bias: bool = False,
    has_head_norms: bool = False,
) -> SparseConfig:
    """The numbers; arguments as for `read_mixture` and `SparseConfig`. Raises `CheckpointError`."""
    usual = read_uniform(checkpoint, architecture=architecture, runs=_OWN)
    return SparseConfig(
        **vars(usual),
        mixture=read_mixture(checkpoint, normalised=normalised, has_shared=has_shared),
        has_experts=_has_experts(Numbers(checkpoint), layers=usual.layers),
        has_bias=has_bias,
        has_head_norms=has_head_norms,
    )


def sparse_table(config: SparseConfig, /) -> dict[str, Weight]:
    """Where each weight is found."""
    width = config.width
    both = {
        **assembly.block_norm_weights(width=width),
        **usual_attention(config, has_bias=config.has_bias, has_head_norms=config.has_head_norms),
    }
    dense = both | assembly.feed_forward_weights(width=width, inner=config.feed_forward)
    routed = both | mixture_weights(config.mixture, width=width)
    return whole_table(config, layers=[routed if is_routed else dense for is_routed in config.has_experts])


def load_sparse(
    checkpoint: Checkpoint, *, config: SparseConfig, table: dict[str, Weight], precision: Precision, kernels: Kernels
) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    return load_uniform(
        checkpoint,
        config=config,
        table=table,
        precision=precision,
        kernels=kernels,
        blocks=lambda parts: [_block(number, parts=parts, config=config) for number in range(config.layers)],
    )


def _block(number: int, *, parts: Assembly, config: SparseConfig) -> Block:
    at = f"layers.{number}"
    feed_forward: FeedForward = (
        mixture(f"{at}.mlp", parts=parts, numbers=config.mixture)
        if config.has_experts[number]
        else parts.feed_forward(f"{at}.mlp")
    )
    return Block(
        entry=number,
        mixer_norm=parts.norm(f"{at}.mixer_norm"),
        mixer=attention(at, parts=parts, config=config),
        feed_forward_norm=parts.norm(f"{at}.feed_forward_norm"),
        feed_forward=feed_forward,
    )


def _has_experts(numbers: Numbers, *, layers: int) -> tuple[bool, ...]:
    """GGUF files do not say which layers are dense; their tensors do."""
    checkpoint = numbers.checkpoint
    if numbers.format is Format.GGUF:
        return tuple(f"blk.{layer}.ffn_gate.weight" not in checkpoint.shapes for layer in range(layers))
    step = checkpoint.get("decoder_sparse_step", int)
    if step is not None and step < 1:
        numbers.refuse(f"decoder_sparse_step is {step}, which is not 1 or more")
    dense = checkpoint.get("mlp_only_layers", list) or []
    return tuple((layer + 1) % (step or 1) == 0 and layer not in dense for layer in range(layers))
