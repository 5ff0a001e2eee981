"""Builds a llama network from a GGUF file, tensor by tensor, and says everything that is wrong with the file at once.

GGUF stores query and key rows so that rotary pairs are adjacent; they are put back into half-split order here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Embedding, RMSNorm
from deployments.lm.models.llama.modeling import Block, Llama, LlamaConfig
from deployments.lm.quant.linear import Linear, Precision, build_linear
from deployments.messages.errors import CheckpointError

ARCHITECTURE = "llama"

type _BuildLinear = Callable[[Float32[np.ndarray, "outputs inputs"]], Linear]


def read_config(file: GgufFile, /) -> LlamaConfig:
    """The network's numbers from the file's metadata. Raises `CheckpointError` for one that is missing or absurd."""
    config = _read_numbers(file)
    # A layer has nine tensors: more layers than tensors would cost memory before it is noticed.
    limits = {
        "block_count": (config.layers, len(file.shapes)),
        "rope.dimension_count": (config.rope_dims, config.head_dim),
    }
    numbers = (config.width, config.kv_heads, config.head_dim, config.feed_forward, config.context, config.rope_dims)
    faults = [f"{name} is {value}, more than {most}" for name, (value, most) in limits.items() if value > most]
    if min(config.layers, *numbers) < 1 or not config.rope_base > 0:
        faults.append("a size is not positive")
    elif config.heads % config.kv_heads or config.head_dim % 2 or config.rope_dims % 2:
        faults.append("heads are not a multiple of kv heads, or a head's width is odd")
    if faults:
        raise CheckpointError(f"{file.path.name} describes no llama network: {'; '.join(faults)}")
    return config


def _read_numbers(file: GgufFile) -> LlamaConfig:
    heads = file.require("llama.attention.head_count", int)
    if heads < 1:
        raise CheckpointError(f"{file.path.name}: llama.attention.head_count is {heads}, which describes no network")
    width = file.require("llama.embedding_length", int)
    head_dim = file.get("llama.attention.key_length", int) or width // heads
    return LlamaConfig(
        layers=file.require("llama.block_count", int),
        width=width,
        heads=heads,
        kv_heads=file.get("llama.attention.head_count_kv", int) or heads,
        head_dim=head_dim,
        feed_forward=file.require("llama.feed_forward_length", int),
        vocabulary=file.shapes.get("token_embd.weight", (0,))[0],
        context=file.require("llama.context_length", int),
        rope_base=file.get("llama.rope.freq_base", float) or 10_000.0,
        rope_dims=file.get("llama.rope.dimension_count", int) or head_dim,
        epsilon=file.require("llama.attention.layer_norm_rms_epsilon", float),
    )


def load_llama(file: GgufFile, *, precision: Precision, kernels: Kernels = Kernels.XLA) -> Llama:
    """The network in `precision`.

    Raises:
        CheckpointError: with every missing, extra and misshapen tensor.
    """
    config = read_config(file)
    _check_scaling(file)
    tensors = _Tensors(file=file)
    tensors.check(expected=_expected_shapes(config, file=file))
    linear = partial(build_linear, precision=precision, kernels=kernels)
    blocks = [
        _load_block(tensors, layer=layer, config=config, linear=linear, kernels=kernels)
        for layer in range(config.layers)
    ]
    table = tensors.read("token_embd.weight")
    head = tensors.read("output.weight") if tensors.has("output.weight") else table
    factors = np.ones(config.rope_dims // 2, np.float32)
    if tensors.has("rope_freqs.weight"):
        factors = tensors.read("rope_freqs.weight")
    return Llama(
        config,
        embedding=Embedding(jnp.asarray(table, precision.embedding_dtype)),
        blocks=blocks,
        norm=_norm(tensors.read("output_norm.weight"), config=config),
        head=linear(head),
        rope_factors=factors,
    )


def _check_scaling(file: GgufFile) -> None:
    kind = file.get("llama.rope.scaling.type", str)
    if kind not in (None, "none"):
        raise CheckpointError(f"{file.path.name} uses rope scaling '{kind}', which this version does not run")


def _expected_shapes(config: LlamaConfig, *, file: GgufFile) -> dict[str, tuple[int, ...]]:
    width, inner = config.width, config.feed_forward
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = {
        "attn_norm": (width,),
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(config.layers) for name, shape in layer.items()}
    shapes["token_embd.weight"] = (config.vocabulary, width)
    shapes["output_norm.weight"] = (width,)
    optional = {"output.weight": (config.vocabulary, width), "rope_freqs.weight": (config.rope_dims // 2,)}
    return shapes | {name: shape for name, shape in optional.items() if name in file.shapes}


def _load_block(
    tensors: "_Tensors", *, layer: int, config: LlamaConfig, linear: _BuildLinear, kernels: Kernels
) -> Block:
    def read(name: str) -> Float32[np.ndarray, "..."]:
        return tensors.read(f"blk.{layer}.{name}.weight")

    queries = _half_split(read("attn_q"), heads=config.heads)
    keys = _half_split(read("attn_k"), heads=config.kv_heads)
    return Block(
        attention_norm=_norm(read("attn_norm"), config=config),
        qkv=linear(np.concatenate([queries, keys, read("attn_v")])),
        output=linear(read("attn_output")),
        feed_forward_norm=_norm(read("ffn_norm"), config=config),
        gate_up=linear(np.concatenate([read("ffn_gate"), read("ffn_up")])),
        down=linear(read("ffn_down")),
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        kernels=kernels,
    )


def _norm(weight: Float32[np.ndarray, " width"], *, config: LlamaConfig) -> RMSNorm:
    return RMSNorm(jnp.asarray(weight), epsilon=config.epsilon)


def _half_split(weight: Float32[np.ndarray, "outputs inputs"], *, heads: int) -> Float32[np.ndarray, "outputs inputs"]:
    outputs, inputs = weight.shape
    pairs = weight.reshape(heads, outputs // heads // 2, 2, inputs)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(outputs, inputs)


@dataclass(kw_only=True)
class _Tensors:
    file: GgufFile
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = frozenset(self.file.shapes)

    def has(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str) -> Float32[np.ndarray, "..."]:
        return self.file.tensor(name)

    def check(self, *, expected: dict[str, tuple[int, ...]]) -> None:
        shapes = self.file.shapes
        faults = [f"{name} is missing" for name in sorted(expected.keys() - shapes.keys())]
        faults += [f"{name} is not part of a llama network" for name in sorted(shapes.keys() - expected.keys())]
        faults += [
            f"{name} has shape {shapes[name]}, expected {shape}"
            for name, shape in sorted(expected.items())
            if name in shapes and shapes[name] != shape
        ]
        if faults:
            raise CheckpointError(f"{self.file.path.name} does not hold a whole llama network: " + "; ".join(faults))
