"""Mixtures of experts from either format: their numbers, their weights and the layer that is built of them.

Experts are stored one by one, all in one tensor, or with gates and the other halves in one as well.
"""

from dataclasses import dataclass, field, replace

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight
from deployments.lm.experts import Experts
from deployments.lm.layers import Activation
from deployments.lm.mixture import Mixture, SharedExpert
from deployments.lm.models import assembly
from deployments.lm.models import numbers as keys
from deployments.lm.models.assembly import Assembly
from deployments.lm.models.numbers import Key, Numbers
from deployments.lm.routing import Routing

_COUNT = Key(gguf="expert_count", hf="num_experts")
_PER_TOKEN = Key(gguf="expert_used_count", hf="num_experts_per_tok")
_WIDTH = Key(gguf="expert_feed_forward_length", hf="moe_intermediate_size")
_SHARED_WIDTH = Key(gguf="expert_shared_feed_forward_length", hf="shared_expert_intermediate_size")
_IS_NORMALISED = Key(gguf="expert_weights_norm", hf="norm_topk_prob")
_SHARES = ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight")
_FUSED = ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj")
# What llama.cpp calls a softmax over all experts, or leaves unsaid.
_SOFTMAX = (None, 0, 1)


@dataclass(frozen=True, kw_only=True)
class MixtureNumbers:
    """The numbers that define a family's mixtures.

    Attributes:
        count: how many experts there are,
        width: and how wide each is inside.
        shared_width: of the one that every row goes through; `None` without one.
        is_fused: gates and the other halves are in one tensor.
        share_shape: of what weighs the shared expert, as it is stored.
    """

    count: int
    width: int
    routing: Routing
    shared_width: int | None
    is_fused: bool = field(compare=False)
    share_shape: tuple[int, ...] = field(compare=False)


def read_mixture(checkpoint: Checkpoint, /, *, normalised: bool, has_shared: bool) -> MixtureNumbers:
    """The numbers.

    Args:
        normalised: whether the weights of a row's experts add up to one, if the checkpoint does not say.

    Raises:
        CheckpointError: one is missing, absurd, or asks for what this version does not run.
    """
    numbers = Numbers(checkpoint)
    numbers.refuse_options("expert_group_count", "n_group", "router_bias")
    if checkpoint.get(f"{checkpoint.architecture}.expert_gating_func", int) not in _SOFTMAX:
        numbers.refuse_options("expert_gating_func")
    if checkpoint.get(f"{checkpoint.architecture}.expert_weights_scale", float) not in (None, 0.0, 1.0):
        numbers.refuse_options("expert_weights_scale")
    count = numbers.size(_COUNT, most=numbers.most_experts)
    told = numbers.get(_IS_NORMALISED, bool)
    return MixtureNumbers(
        count=count,
        width=numbers.size(_WIDTH),
        routing=Routing(
            per_token=numbers.size(_PER_TOKEN, most=count), normalised=normalised if told is None else told
        ),
        shared_width=numbers.size(_SHARED_WIDTH, default=numbers.get(keys.FEED_FORWARD, int)) if has_shared else None,
        is_fused=any(name.endswith(_FUSED) for name in checkpoint.shapes),
        share_shape=next((shape for name, shape in checkpoint.shapes.items() if name.endswith(_SHARES)), ()),
    )


def mixture_weights(numbers: MixtureNumbers, /, *, width: int) -> dict[str, Weight]:
    """The weights of a layer's mixture, by their names inside a layer."""
    count, routed = numbers.count, numbers.width
    table = {"mlp.router": Weight(shape=(count, width), gguf="ffn_gate_inp.weight", hf="mlp.gate.weight")}
    if numbers.is_fused:
        for name, shape in (("gate_up", (2 * routed, width)), ("down", (width, routed))):
            table |= assembly.fused_weights(
                f"mlp.experts.{name}",
                count=count,
                shape=shape,
                gguf=f"ffn_{name}_exps.weight",
                hf=f"mlp.experts.{name}_proj",
            )
    else:
        for name, shape in (("gate", (routed, width)), ("up", (routed, width)), ("down", (width, routed))):
            stacked = assembly.fused_weights(
                f"mlp.experts.{name}", count=count, shape=shape, gguf=f"ffn_{name}_exps.weight", hf=""
            )
            for number, (at, weight) in enumerate(stacked.items()):
                hf = f"mlp.experts.{number}.{name}_proj.weight"
                table[at] = replace(weight, hf=hf, hf_shape=None, hf_part=None, from_hf=None)
    inner = numbers.shared_width
    return table | ({} if inner is None else _shared_weights(numbers, inner=inner, width=width))


def mixture(prefix: str, /, *, parts: Assembly, numbers: MixtureNumbers) -> Mixture:
    """The layer, given what the names of its weights begin with."""
    experts = f"{prefix}.experts"
    halves = ("gate_up",) if numbers.is_fused else ("gate", "up")
    return Mixture(
        router=parts.exact_linear(f"{prefix}.router"),
        routing=numbers.routing,
        experts=Experts(
            gate_up=parts.stacked(*(f"{experts}.{half}" for half in halves), count=numbers.count),
            down=parts.stacked(f"{experts}.down", count=numbers.count),
            activation=Activation.SILU,
        ),
        shared=None
        if numbers.shared_width is None
        else SharedExpert(feed_forward=parts.feed_forward(f"{prefix}.shared"), gate=parts.vector(f"{prefix}.share")),
    )


def _shared_weights(numbers: MixtureNumbers, *, inner: int, width: int) -> dict[str, Weight]:
    # GGUF files have it as a vector or as a matrix of one row.
    stored = (width,) if numbers.share_shape == (width,) else (1, width)
    return {
        "mlp.share": Weight(
            shape=(width,),
            gguf="ffn_gate_inp_shexp.weight",
            hf="mlp.shared_expert_gate.weight",
            from_gguf=lambda stored: stored.reshape(-1),
            from_hf=lambda stored: stored.reshape(-1),
            gguf_shape=stored,
            hf_shape=stored,
        ),
        **{
            f"mlp.shared.{name}": Weight(
                shape=shape, gguf=f"ffn_{name}_shexp.weight", hf=f"mlp.shared_expert.{name}_proj.weight"
            )
            for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner)))
        },
    }
