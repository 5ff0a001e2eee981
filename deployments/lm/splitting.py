"""A network over several devices: takes a whole one apart, so that each device runs the same layers, only narrower.

Projections into heads and inner widths are split by their outputs, those back to the residual stream by their inputs;
embedding and head by tokens; norms and the stream are whole everywhere (Shoeybi et al., 2019, "Megatron-LM"). What
does not divide is filled up with zeros. Leaves may be shapes alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from deployments.lm.cache.layout import KeysAndValues
from deployments.lm.decoder import Block, Decoder
from deployments.lm.delta import GatedDeltaNet
from deployments.lm.head_plan import NOTHING, HeadPlan, Places, device_major, even, plan_heads, spread
from deployments.lm.layers import GatedFeedForward
from deployments.lm.mesh import AXIS, is_placed, parameter, settle
from deployments.lm.quant.linear import FloatLinear, Int8Linear, Linear
from deployments.lm.sampling.blocks import BLOCK
from deployments.lm.self_attention import SelfAttention
from deployments.messages.errors import ConfigError

# Values of a row that a processor works on at once; what is left over it may compute with other bits.
_VECTOR = 32

type Place = Callable[[Any, int | None], Any]


def split_network(network: Decoder, /, *, shards: int, place: Place) -> Decoder:
    """The network with every leaf as `shards` devices hold it together; the one given is taken apart.

    Args:
        place: puts a leaf, and which of its dimensions lies along the axis, where it shall be. It is called layer by
            layer, so that never are two whole networks in memory.

    Raises:
        ConfigError: it has parts that this version does not split.
    """
    if not splits(network):
        raise _refusal(network)
    splitter = _Splitter(shards=shards, place=place)
    layout = list(network.config.layout)
    for block in network.blocks:
        layout[block.entry] = splitter.block(block, network=network)
    splitter.outer(network)
    splitter.rest(network)
    network.config = replace(network.config, layout=tuple(layout))
    network.axis = AXIS
    return network


def splits(network: Decoder, /) -> bool:
    """Whether it has only parts that this version splits."""
    return network.inputs is None and all(map(_splits, network.blocks))


def _splits(block: Block) -> bool:
    mixer = block.mixer
    has_own_keys = isinstance(mixer, SelfAttention) and not mixer.keys_are_values and bool(mixer.kv_heads)
    return (
        (has_own_keys or isinstance(mixer, GatedDeltaNet))
        and block.ending is None
        and isinstance(block.feed_forward, GatedFeedForward)
    )


@dataclass(frozen=True, kw_only=True)
class _Splitter:
    shards: int
    place: Place

    def block(self, block: Block, /, *, network: Decoder) -> KeysAndValues | Any:
        """Splits a layer in place; what it keeps in the cache, over all devices."""
        match block.mixer, block.feed_forward:
            case SelfAttention() as mixer, GatedFeedForward() as feed_forward:
                entry: Any = self.attention(mixer)
            case GatedDeltaNet() as delta, GatedFeedForward() as feed_forward:
                entry = self.delta(delta)
            case _:
                raise _refusal(network)
        self.feed_forward(feed_forward)
        self.rest(block)
        return entry

    def attention(self, mixer: SelfAttention, /) -> KeysAndValues:
        plan = plan_heads(heads=mixer.heads, kv_heads=mixer.kv_heads, shards=self.shards)
        size = mixer.head_dim
        queries = [spread(plan.queries, size=size)]
        if mixer.is_gated:
            queries.append(spread(plan.queries, size=size, first=mixer.heads * size))
        first = len(queries) * mixer.heads * size
        keys = spread(plan.keys, size=size, first=first)
        values = spread(plan.keys, size=size, first=first + mixer.kv_heads * size)
        outputs = device_major([*queries, keys, values], shards=self.shards)
        self.columns(mixer.qkv, outputs=outputs)
        if mixer.bias is not None:
            mixer.bias = self.taken(mixer.bias, outputs, split=0)
        self.rows(mixer.output, inputs=queries[0])
        if plan.is_ragged:
            mixer.exists = parameter(self.place(jnp.asarray(plan.queries != NOTHING), 0), split=0)
        mixer.heads, mixer.kv_heads = plan.heads, plan.kv_heads
        return KeysAndValues(kv_heads=self.shards * plan.kv_heads, head_dim=size)

    def delta(self, mixer: GatedDeltaNet, /) -> Any:
        shape = mixer.shape
        plan = plan_heads(heads=shape.heads, kv_heads=mixer.key_heads, shards=self.shards)
        channels, width = self._channels(mixer, plan=plan), spread(plan.queries, size=shape.value_dim)
        weights = np.where(width == NOTHING, NOTHING, width + shape.channels)
        parts = [*channels, weights]
        self.columns(mixer.inputs, outputs=device_major(parts, shards=self.shards))
        mixer.kernel = self.taken(mixer.kernel, device_major(channels, shards=self.shards), split=1)
        mixer.own = parameter(self.place(jnp.asarray(np.maximum(plan.queries, 0), jnp.int32), 0), split=0)
        self.rows(mixer.output, inputs=width)
        own = sum(part.size for part in channels) // self.shards
        mixer.key_heads = plan.kv_heads
        mixer.shape = replace(shape, heads=plan.heads, channels=own)
        return replace(shape, heads=self.shards * plan.heads, channels=self.shards * own, gates=shape.heads)

    def _channels(self, mixer: GatedDeltaNet, *, plan: HeadPlan) -> list[Places]:
        """The convolution's: queries, keys and values."""
        shape = mixer.shape
        width = mixer.key_heads * shape.key_dim
        return [
            spread(plan.keys, size=shape.key_dim),
            spread(plan.keys, size=shape.key_dim, first=width),
            spread(plan.queries, size=shape.value_dim, first=2 * width),
        ]

    def feed_forward(self, layer: GatedFeedForward, /) -> None:
        count = _outputs(layer.gate_up) // 2
        gate = even(count, shards=self.shards, multiple=_VECTOR)
        up = np.where(gate == NOTHING, NOTHING, gate + count)
        self.columns(layer.gate_up, outputs=device_major([gate, up], shards=self.shards))
        self.rows(layer.down, inputs=gate)

    def outer(self, network: Decoder, /) -> None:
        """Embedding and head, by tokens. A table that is both stays one."""
        tokens = even(network.config.vocabulary, shards=self.shards, multiple=BLOCK)
        embedding, head = network.embedding, network.head
        is_tied = isinstance(head, FloatLinear) and head.weight.get_raw_value() is embedding.table.get_raw_value()
        embedding.table = self.taken(embedding.table, tokens, split=0)
        embedding.axis = AXIS
        if is_tied:
            _splittable(head).weight = parameter(embedding.table.get_raw_value(), split=0)
        else:
            self.columns(head, outputs=tokens)

    def columns(self, linear: Linear, /, *, outputs: Places) -> None:
        """Each device has some of the outputs."""
        kept = _splittable(linear)
        kept.weight = self.taken(kept.weight, outputs, split=0)
        if isinstance(kept, Int8Linear):
            kept.scale = self.taken(kept.scale, outputs, split=0)

    def rows(self, linear: Linear, /, *, inputs: Places) -> None:
        """Each device has some of the inputs, and the outputs are the sum of all."""
        kept = _splittable(linear)
        kept.weight = self.taken(kept.weight, inputs, split=1)
        kept.axis = AXIS

    def taken(self, variable: nnx.Variable[Any], places: Places, /, *, split: int) -> nnx.Param[Any]:
        """The elements at these places of one dimension, zero where there is nothing."""
        return parameter(self.place(_taken(variable.get_raw_value(), places, axis=split), split), split=split)

    def rest(self, part: nnx.Module, /) -> None:
        """Whatever is not split is whole on every device."""
        for _, variable in nnx.iter_graph(part):
            if isinstance(variable, nnx.Variable) and not is_placed(variable):
                variable.set_raw_value(self.place(variable.get_raw_value(), None))
                settle(variable, split=None)


def _taken(leaf: Any, places: Places, *, axis: int) -> Any:
    if np.array_equal(places, np.arange(leaf.shape[axis])):
        return leaf
    shape = (*leaf.shape[:axis], len(places), *leaf.shape[axis + 1 :])
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype)
    taken = np.take(np.asarray(leaf), np.maximum(places, 0), axis=axis)
    np.moveaxis(taken, axis, 0)[places == NOTHING] = 0
    return taken


def _outputs(linear: Linear) -> int:
    return int(_splittable(linear).weight.get_raw_value().shape[0])


def _splittable(linear: Linear) -> FloatLinear | Int8Linear:
    if not isinstance(linear, (FloatLinear, Int8Linear)):
        raise ConfigError("native kernels run on one device; take kernels 'xla', or set tensor_parallel to 1")
    return linear


def _refusal(network: Decoder) -> ConfigError:
    return ConfigError(
        f"this version does not split {network.config.architecture} networks over several devices; "
        "set tensor_parallel to 1, or --chip to a slice of one device"
    )
