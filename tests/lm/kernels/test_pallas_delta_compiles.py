"""The Pallas recurrence, compiled by libtpu for chips that are not here, in a layer whose cache is donated."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, SingleDeviceSharding

from deployments.lm.cache.layout import CacheShape, Recurrent, RecurrentState
from deployments.lm.kernels.delta import pallas
from deployments.lm.recurrence import SEGMENT_FIELDS, runs_of
from deployments.lm.topologies import absent_devices

CHIPS = ("v5e:2x2x1", "v5p:2x2x1", "v6e:1x1x1", pytest.param("tpu7x:2x2x1", marks=pytest.mark.slow))
SLOTS, DRAFTS = 8, 7
STATES, WAITING, SEGMENTS = 2 * SLOTS + 2, SLOTS * DRAFTS + 1, 3 * SLOTS + 1
# What an instruction may take of a core's fast memory unless it asks for more.
SCOPED_VMEM = 16 << 20


def recurrent(*, key_heads: int, each: int = 3, gates: int | None = None) -> Recurrent:
    """A device's share of Qwen3.8-27B; all of it with 16 key heads."""
    heads = key_heads * each
    return Recurrent(
        heads=heads, key_dim=128, value_dim=128, channels=(2 * key_heads + heads) * 128, taps=4, gates=gates
    )


QWEN_27B = recurrent(key_heads=16)


def compiled(shape: Recurrent, *, rows: int, chip: str) -> tuple[jax.stages.Compiled, RecurrentState]:
    """A window, and then its rows where the pending ones are; with the cache's shapes."""
    device = absent_devices(chip)[0]
    here = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    size = CacheShape(layout=(shape,), pages=1, page_size=1, states=STATES, pending=WAITING)
    (zeros,) = jax.eval_shape(lambda: size.zeros(jnp.dtype(jnp.float32)))
    shapes: Any = [here(one.shape, one.dtype) for one in zeros]
    cache = RecurrentState(*shapes)
    gates = shape.gates or shape.heads

    def layer(
        cache: RecurrentState, rows: Any, numbers: pallas.Numbers, segments: jax.Array, places: jax.Array
    ) -> tuple[jax.Array, RecurrentState]:
        pending = cache.pending_inputs, cache.pending_gates
        runs = runs_of(segments, steps=WAITING + len(places))
        states = cache.matrices, cache.history
        done = pallas.recur(states, pending=pending, rows=rows, runs=runs, numbers=numbers)
        out, pending = jax.lax.optimization_barrier((done.out, pending))
        kept = (old.at[places].set(new, mode="promise_in_bounds") for old, new in zip(pending, rows, strict=True))
        return out, RecurrentState(*done.states, *kept)

    each = here((gates,), jnp.float32)
    own: Any = here((shape.taps, shape.channels), jnp.float32), each, each, here((shape.heads,), jnp.int32)
    given = here((rows, shape.channels), jnp.float32), here((rows, 2, gates), jnp.float32)
    tables = here((SEGMENTS, SEGMENT_FIELDS), jnp.int32), here((rows,), jnp.int32)
    with jax.sharding.use_abstract_mesh(Mesh(np.array([device]), ("chips",)).abstract_mesh):
        lowered = jax.jit(layer, donate_argnums=0).lower(cache, given, pallas.Numbers(*own), *tables)
    return lowered.compile(), cache


def check(shape: Recurrent, *, rows: int, chip: str) -> None:
    program, cache = compiled(shape, rows=rows, chip=chip)
    text, memory = program.as_text() or "", program.memory_analysis()
    assert text.count("tpu_custom_call") == 1
    assert memory is not None
    states = sum(4 * np.prod(one.shape) for one in (cache.matrices, cache.history))
    # States are written where they are, and no window holds two of them beside.
    assert memory.alias_size_in_bytes >= states
    assert memory.temp_size_in_bytes < rows * 4 * shape.channels + 4 * np.prod(cache.pending_inputs.shape) + (2 << 20)
    assert pallas.vmem_bytes(shape) < SCOPED_VMEM
    for one in (cache.matrices, cache.history):
        sizes = ",".join(map(str, one.shape))
        assert not [line for line in text.splitlines() if f"f32[{sizes}]" in line.split("(")[0] and " copy" in line]


@pytest.mark.parametrize("chip", CHIPS)
def test_a_layer_of_qwen_27b_compiles_and_copies_no_state(chip: str) -> None:
    check(QWEN_27B, rows=SLOTS, chip=chip)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("rows", [64, 128])
def test_so_it_does_in_wide_windows(rows: int, chip: str) -> None:
    check(QWEN_27B, rows=rows, chip=chip)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "shape",
    [
        recurrent(key_heads=8, gates=48),
        recurrent(key_heads=4, gates=48),
        recurrent(key_heads=2, gates=48),
        recurrent(key_heads=1, gates=48),
        recurrent(key_heads=16, each=1),
        recurrent(key_heads=16, each=2),
        recurrent(key_heads=16, each=4),
    ],
    ids=str,
)
def test_other_layers_and_shares_of_one(shape: Recurrent, chip: str) -> None:
    check(shape, rows=16, chip=chip)
