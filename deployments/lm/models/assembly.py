"""From weights to the parts of a network: what every family's file builds its blocks with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from deployments.lm.checkpoint.source import Checkpoint, Format
from deployments.lm.checkpoint.weights import Change, Tensor, Weight, Weights, half_split
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Activation, Embedding, GatedFeedForward, RMSNorm
from deployments.lm.models.numbers import Numbers
from deployments.lm.quant.linear import FloatLinear, Linear, Precision, join_linear
from deployments.lm.quant.stacked import StackedLinear, build_stacked

# Hugging Face's: alone, inside a model that also sees or hears, and inside one that transformers before 4.52 saved.
TEXT_MODELS = ("model", "model.language_model", "language_model.model")
_OTHER_SENSES = frozenset(
    {
        "vision_tower",
        "vision_model",
        "visual",
        "multi_modal_projector",
        "audio_tower",
        "embed_vision",
        "embed_audio",
    }
)


class Outer(NamedTuple):
    """What a network has before its layers and after them."""

    embedding: Embedding
    norm: RMSNorm
    head: Linear


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Reads weights by name and makes layers of them, in `precision`."""

    weights: Weights
    precision: Precision
    kernels: Kernels
    epsilon: float

    def linear(self, *names: str) -> Linear:
        """One layer of several weights, their outputs one below the other."""
        parts = (self.weights.read(name) for name in names)
        return join_linear(parts, precision=self.precision, kernels=self.kernels)

    def exact_linear(self, *names: str) -> Linear:
        """One kept in f32 whatever the precision: small, and a choice or a whole sequence hangs on it."""
        return join_linear((self.weights.read(name) for name in names), precision=Precision.F32)

    def stacked(self, *prefixes: str, count: int) -> StackedLinear:
        """As many linear layers in one, of the weights `prefix.0`, `prefix.1` and so on, read one by one; those of
        several prefixes one below the other."""
        return build_stacked(
            lambda number: np.concatenate([self.weights.read(f"{prefix}.{number}") for prefix in prefixes]),
            experts=count,
            precision=self.precision,
            kernels=self.kernels,
        )

    def vector(self, *names: str) -> Float32[Array, " outputs"]:
        """Vectors one after another."""
        return jnp.asarray(np.concatenate([self.weights.read(name) for name in names]))

    def turned(self, name: str, /) -> Float32[Array, "inputs outputs"]:
        """A matrix the other way round."""
        return jnp.asarray(self.weights.read(name).T)

    def norm(self, name: str, /) -> RMSNorm:
        return RMSNorm(jnp.asarray(self.weights.read(name)), epsilon=self.epsilon)

    def embedding(self, name: str = "embedding", /) -> Embedding:
        """The table of tokens, in the type the precision keeps it in."""
        # Converted on the host: a device would hold the table in both types for a while.
        table = self.weights.read(name).astype(self.precision.embedding_dtype, copy=False)
        return Embedding(jnp.asarray(table))

    def outer(self) -> "Outer":
        """What lies around the layers. A network without a head of its own has the embedding's table for one, in the
        same memory where both are kept in the same type."""
        embedding = self.embedding()
        if self.weights.has("head"):
            head: Linear = self.linear("head")
        elif self.precision in (Precision.F32, Precision.BF16):
            head = FloatLinear(embedding.table[...])
        else:
            head = self.linear("embedding")
        return Outer(embedding=embedding, norm=self.norm("norm"), head=head)

    def feed_forward(self, prefix: str, /, *, activation: Activation = Activation.SILU) -> GatedFeedForward:
        return GatedFeedForward(
            gate_up=self.linear(f"{prefix}.gate", f"{prefix}.up"),
            down=self.linear(f"{prefix}.down"),
            activation=activation,
        )


def outer_weights(
    *,
    vocabulary: int,
    width: int,
    hf: str = "model",
    norm_from_hf: Change | None = None,
    is_tied: bool | None = None,
) -> dict[str, Weight]:
    """Embedding, final norm and head.

    Args:
        is_tied: the head is the embedding's table, whatever else the checkpoint holds; `None` leaves that to whether
            it holds one.
    """
    head = Weight(
        shape=(vocabulary, width),
        gguf="output.weight",
        hf=_head_of(hf),
        is_optional=is_tied is not False,
        is_usual=is_tied is False,
    )
    return {
        "embedding": Weight(shape=(vocabulary, width), gguf="token_embd.weight", hf=f"{hf}.embed_tokens.weight"),
        "norm": Weight(shape=(width,), gguf="output_norm.weight", hf=f"{hf}.norm.weight", from_hf=norm_from_hf),
        "unused_head" if is_tied else "head": head,
    }


def is_tied(numbers: Numbers, /) -> bool:
    """A configuration that says so is believed: what a file then holds as a head is not the network's."""
    if numbers.format is Format.GGUF:
        return "output.weight" not in numbers.checkpoint.shapes
    if not numbers.checkpoint.has_values and not numbers.checkpoint.shapes:
        return numbers.checkpoint.require("tie_word_embeddings", bool)
    told = numbers.checkpoint.get("tie_word_embeddings", bool)
    return "lm_head.weight" not in numbers.checkpoint.shapes if told is None else told


def _head_of(hf: str) -> str:
    outer, _, inner = hf.rpartition(".")
    return f"{outer}.lm_head.weight" if inner == "model" and outer else "lm_head.weight"


def layer_weights(table: Mapping[str, Weight], /, *, number: int, hf: str = "model.layers") -> dict[str, Weight]:
    """The weights of one layer, by `layers.N.name`; the table has names as they are inside a layer."""
    return {
        f"layers.{number}.{name}": replace(
            weight,
            gguf=None if weight.gguf is None else f"blk.{number}.{weight.gguf}",
            hf=None if weight.hf is None else f"{hf}.{number}.{weight.hf}",
        )
        for name, weight in table.items()
    }


def attention_weights(
    *, width: int, heads: int, kv_heads: int, head_dim: int, is_paired: bool = False, has_bias: bool = False
) -> dict[str, Weight]:
    """Projections of a layer with attention.

    Args:
        is_paired: GGUF files of the family keep rotary pairs adjacent (llama, granite).
        has_bias: queries, keys and values have one.
    """
    sizes = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    turned = {"q": half_split(heads=heads), "k": half_split(heads=kv_heads)} if is_paired else {}
    table: dict[str, Weight] = {}
    for name, size in sizes.items():
        gguf, hf, change = f"attn_{name}", f"self_attn.{name}_proj", turned.get(name)
        table[name] = Weight(shape=(size, width), gguf=f"{gguf}.weight", hf=f"{hf}.weight", from_gguf=change)
        if has_bias:
            table[f"{name}_bias"] = Weight(shape=(size,), gguf=f"{gguf}.bias", hf=f"{hf}.bias", from_gguf=change)
    table["o"] = Weight(shape=(width, sizes["q"]), gguf="attn_output.weight", hf="self_attn.o_proj.weight")
    return table


def head_norm_weights(*, head_dim: int, from_hf: Change | None = None) -> dict[str, Weight]:
    """Norms of each query's and key's head."""
    return {
        f"{name}_norm": Weight(
            shape=(head_dim,),
            gguf=f"attn_{name}_norm.weight",
            hf=f"self_attn.{name}_norm.weight",
            from_hf=from_hf,
        )
        for name in ("q", "k")
    }


def feed_forward_weights(*, width: int, inner: int) -> dict[str, Weight]:
    """A dense gated feed-forward."""
    return {
        "mlp.gate": Weight(shape=(inner, width), gguf="ffn_gate.weight", hf="mlp.gate_proj.weight"),
        "mlp.up": Weight(shape=(inner, width), gguf="ffn_up.weight", hf="mlp.up_proj.weight"),
        "mlp.down": Weight(shape=(width, inner), gguf="ffn_down.weight", hf="mlp.down_proj.weight"),
    }


def fused_weights(name: str, /, *, count: int, shape: tuple[int, int], gguf: str, hf: str) -> dict[str, Weight]:
    """Weights of experts that both formats keep as one tensor, each of them by `name.N`."""
    return {
        f"{name}.{number}": Weight(
            shape=shape,
            gguf=gguf,
            hf=hf,
            gguf_shape=(count, *shape),
            hf_shape=(count, *shape),
            gguf_part=slice(number, number + 1),
            hf_part=slice(number, number + 1),
            from_gguf=_only,
            from_hf=_only,
        )
        for number in range(count)
    }


def _only(stored: Tensor) -> Tensor:
    only: Tensor = stored[0]
    return only


def block_norm_weights(*, width: int) -> dict[str, Weight]:
    """The usual two norms of a layer, before attention and before the feed-forward."""
    return {
        "mixer_norm": Weight(shape=(width,), gguf="attn_norm.weight", hf="input_layernorm.weight"),
        "feed_forward_norm": Weight(shape=(width,), gguf="ffn_norm.weight", hf="post_attention_layernorm.weight"),
    }


def text_model(checkpoint: Checkpoint, /) -> str:
    """What the names of the text model's tensors begin with, alone or inside a model that also sees and hears."""
    inside = (name for name in TEXT_MODELS if f"{name}.embed_tokens.weight" in checkpoint.shapes)
    return next(inside, TEXT_MODELS[0])


def is_other_sense(name: str, /) -> bool:
    """Whether a tensor belongs to what turns images or sound into embeddings."""
    return not _OTHER_SENSES.isdisjoint(name.split("."))


def is_beside_text(name: str, /) -> bool:
    """Whether a text model does without a stored tensor."""
    return is_derived(name) or is_other_sense(name)


def is_derived(name: str, /) -> bool:
    """Whether a stored tensor only repeats what the numbers say."""
    return name == "rope_freqs.weight" or name.endswith(".inv_freq")
