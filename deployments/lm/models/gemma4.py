"""The gemma4 family: Gemma 4's text models, dense, with experts, or with inputs of the tokens to each layer.

What they see of images or hear is left out. Source of the architecture: transformers' `modeling_gemma4`.
"""

from dataclasses import replace

from deployments.lm.checkpoint.source import Checkpoint
from deployments.lm.checkpoint.weights import Weight, Weights
from deployments.lm.decoder import Block, Decoder, FeedForward
from deployments.lm.experts import Experts
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Activation, RMSNorm
from deployments.lm.models import assembly, gemma
from deployments.lm.models import numbers as keys
from deployments.lm.models.gemma4_config import ExpertNumbers, Gemma4Config, LayerShape, read_config
from deployments.lm.models.gemma4_parts import DenseAndExperts, Gemma4Ending, TokenInput, TokenInputs
from deployments.lm.models.numbers import Numbers, frequencies, rope_factors
from deployments.lm.models.outline import assembly_of
from deployments.lm.quant.linear import Precision
from deployments.lm.routing import Routing
from deployments.lm.self_attention import SelfAttention

__all__ = ["load", "read_config", "weight_table"]


def weight_table(config: Gemma4Config, /, *, text: str = "model") -> dict[str, Weight]:
    """Where each weight is found; `text` is what the text model's names begin with."""
    table = assembly.outer_weights(vocabulary=config.vocabulary, width=config.width, hf=text)
    if config.inputs:
        table |= _inputs_weights(config, text=text)
    for number, shape in enumerate(config.shapes):
        table |= assembly.layer_weights(_layer_weights(shape, config=config), number=number, hf=f"{text}.layers")
    return table


def load(checkpoint: Checkpoint, *, precision: Precision, kernels: Kernels) -> Decoder:
    """The network in `precision`. Raises `CheckpointError` with everything that is wrong with its tensors."""
    config = read_config(checkpoint)
    table = weight_table(config, text=assembly.text_model(checkpoint))
    weights = Weights(checkpoint, table=table, ignored=assembly.is_beside_text)
    parts = assembly_of(weights, precision=precision, kernels=kernels, epsilon=config.epsilon)
    wide, narrow = config.head_dim(is_sliding=False), config.head_dim(is_sliding=True)
    factors = rope_factors(Numbers(checkpoint), base=config.rope_base, dims=wide, of=keys.FULL)
    outer = parts.outer()
    return Decoder(
        config,
        blocks=[_block(number, parts=parts, config=config) for number in range(config.layers)],
        embedding=outer.embedding,
        norm=outer.norm,
        head=outer.head,
        rotary=[
            frequencies(base=config.rope_base, dims=wide, factors=factors),
            frequencies(base=config.local_rope_base, dims=narrow),
        ],
        inputs=_inputs(parts, config=config) if config.inputs else None,
    )


def _block(number: int, *, parts: assembly.Assembly, config: Gemma4Config) -> Block:
    at, shape = f"layers.{number}", config.shapes[number]
    has_experts = config.experts is not None
    return Block(
        entry=shape.entry,
        mixer=_attention(at, parts=parts, config=config, shape=shape),
        feed_forward_norm=None if has_experts else parts.norm(f"{at}.feed_forward_norm"),
        feed_forward=_feed_forward(at, parts=parts, numbers=config.experts),
        **gemma.norms(parts, at=at),
        ending=_ending(number, parts=parts, config=config),
    )


def _attention(at: str, *, parts: assembly.Assembly, config: Gemma4Config, shape: LayerShape) -> SelfAttention:
    names = ["q"] if shape.is_borrowing else ["q", "k"] if shape.keys_are_values else ["q", "k", "v"]
    return SelfAttention(
        qkv=parts.linear(*(f"{at}.{name}" for name in names)),
        output=parts.linear(f"{at}.o"),
        heads=config.heads,
        kv_heads=0 if shape.is_borrowing else shape.kv_heads,
        head_dim=shape.head_dim,
        kernels=parts.kernels,
        query_norm=parts.norm(f"{at}.q_norm"),
        key_norm=None if shape.is_borrowing else parts.norm(f"{at}.k_norm"),
        value_norm=None if shape.is_borrowing else RMSNorm(None, epsilon=config.epsilon),
        rotary=gemma.LOCAL_TABLE if shape.is_sliding else gemma.GLOBAL_TABLE,
        scale=1.0,
        window=config.window if shape.is_sliding else None,
        keys_are_values=shape.keys_are_values,
    )


def _feed_forward(at: str, *, parts: assembly.Assembly, numbers: ExpertNumbers | None) -> FeedForward:
    dense = parts.feed_forward(f"{at}.mlp", activation=Activation.GELU)
    if numbers is None:
        return dense
    scales = parts.vector(f"{at}.router.scales")
    return DenseAndExperts(
        dense_norm=parts.norm(f"{at}.feed_forward_norm"),
        dense=dense,
        after_dense=parts.norm(f"{at}.after_dense"),
        router_norm=RMSNorm(scales * scales.shape[0] ** -0.5, epsilon=parts.epsilon),
        router=parts.exact_linear(f"{at}.router"),
        routing=Routing(per_token=numbers.per_token, normalised=True),
        scales=parts.vector(f"{at}.experts.scales"),
        experts_norm=parts.norm(f"{at}.experts_norm"),
        experts=Experts(
            gate_up=parts.stacked(f"{at}.experts.gate_up", count=numbers.count),
            down=parts.stacked(f"{at}.experts.down", count=numbers.count),
            activation=Activation.GELU,
        ),
        after_experts=parts.norm(f"{at}.after_experts"),
    )


def _ending(number: int, *, parts: assembly.Assembly, config: Gemma4Config) -> Gemma4Ending:
    at = f"layers.{number}"
    return Gemma4Ending(
        token_input=_token_input(number, parts=parts) if config.inputs else None,
        scale=parts.vector(f"{at}.scale") if parts.weights.has(f"{at}.scale") else None,
    )


def _token_input(number: int, *, parts: assembly.Assembly) -> TokenInput:
    at = f"layers.{number}.input"
    return TokenInput(
        number,
        gate=parts.linear(f"{at}.gate"),
        output=parts.linear(f"{at}.output"),
        norm=parts.norm(f"{at}.norm"),
    )


def _inputs(parts: assembly.Assembly, *, config: Gemma4Config) -> TokenInputs:
    return TokenInputs(
        embedding=parts.embedding("inputs.embedding"),
        projection=parts.linear("inputs.projection"),
        norm=parts.norm("inputs.norm"),
        layers=config.layers,
        scale=config.width**-0.5,
    )


def _inputs_weights(config: Gemma4Config, *, text: str) -> dict[str, Weight]:
    together = config.layers * config.inputs
    return {
        "inputs.embedding": Weight(
            shape=(config.vocabulary, together),
            gguf="per_layer_token_embd.weight",
            hf=f"{text}.embed_tokens_per_layer.weight",
        ),
        "inputs.projection": Weight(
            shape=(together, config.width),
            gguf="per_layer_model_proj.weight",
            hf=f"{text}.per_layer_model_projection.weight",
        ),
        "inputs.norm": Weight(
            shape=(config.inputs,),
            gguf="per_layer_proj_norm.weight",
            hf=f"{text}.per_layer_projection_norm.weight",
        ),
    }


def _layer_weights(shape: LayerShape, *, config: Gemma4Config) -> dict[str, Weight]:
    table = {
        **gemma.norm_weights(width=config.width),
        **_attention_weights(shape, config=config),
        **assembly.feed_forward_weights(width=config.width, inner=shape.feed_forward),
        "scale": Weight(shape=(1,), gguf="layer_output_scale.weight", hf="layer_scalar", is_optional=True),
    }
    if config.inputs:
        table |= _input_weights(config)
    if config.experts is not None:
        table |= _expert_weights(config.experts, width=config.width)
    return table


def _attention_weights(shape: LayerShape, *, config: Gemma4Config) -> dict[str, Weight]:
    table = {
        **assembly.attention_weights(
            width=config.width, heads=config.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        ),
        **assembly.head_norm_weights(head_dim=shape.head_dim),
    }
    if shape.keys_are_values:
        del table["v"]
    if shape.is_borrowing:
        # Some checkpoints hold them all the same; nobody reads them.
        table |= {name: replace(table[name], is_optional=True) for name in ("k", "v", "k_norm")}
    return table


def _input_weights(config: Gemma4Config) -> dict[str, Weight]:
    return {
        "input.gate": Weight(
            shape=(config.inputs, config.width), gguf="inp_gate.weight", hf="per_layer_input_gate.weight"
        ),
        "input.output": Weight(
            shape=(config.width, config.inputs), gguf="proj.weight", hf="per_layer_projection.weight"
        ),
        "input.norm": Weight(shape=(config.width,), gguf="post_norm.weight", hf="post_per_layer_input_norm.weight"),
    }


def _expert_weights(numbers: ExpertNumbers, *, width: int) -> dict[str, Weight]:
    norms = {
        "after_dense": ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        "experts_norm": ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        "after_experts": ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    }
    return {
        **{
            name: Weight(shape=(width,), gguf=f"{gguf}.weight", hf=f"{hf}.weight") for name, (gguf, hf) in norms.items()
        },
        "router": Weight(shape=(numbers.count, width), gguf="ffn_gate_inp.weight", hf="router.proj.weight"),
        "router.scales": Weight(shape=(width,), gguf="ffn_gate_inp.scale", hf="router.scale"),
        "experts.scales": Weight(shape=(numbers.count,), gguf="ffn_down_exps.scale", hf="router.per_expert_scale"),
        **assembly.fused_weights(
            "experts.gate_up",
            count=numbers.count,
            shape=(2 * numbers.width, width),
            gguf="ffn_gate_up_exps.weight",
            hf="experts.gate_up_proj",
        ),
        **assembly.fused_weights(
            "experts.down",
            count=numbers.count,
            shape=(width, numbers.width),
            gguf="ffn_down_exps.weight",
            hf="experts.down_proj",
        ),
    }
