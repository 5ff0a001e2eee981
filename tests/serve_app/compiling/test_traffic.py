"""Traffic of texts made by hand, and of programs compiled for chips, whose least is known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from deployments.lm.mesh import make_mesh
from deployments.lm.topologies import absent_devices
from serve_app.compiling.hlo import Module, parse_module
from serve_app.compiling.traffic import Sources, traffic_of
from tests.serve_app.compiling import texts

WIDTH, INNER, LAYERS, ROWS = 1024, 8192, 3, 8
CHIPS = ("v5e", "v5p", "v6e")


def test_a_fetched_weight_counts_once() -> None:
    traffic = traffic_of(parse_module(texts.PREFETCH))
    assert traffic.read == 256 * 128
    assert traffic.written == 8 * 256 * 4
    assert [product.total for product in traffic.products] == [2 * 8 * 256 * 128]


def test_an_update_in_place_moves_what_it_writes() -> None:
    traffic = traffic_of(parse_module(texts.SCATTER))
    rows, where = 8 * 128 * 4, 8 * 128 * 4
    assert traffic.read == rows + where
    assert traffic.written == rows
    assert [one.name for one in traffic.movements] == ["scattered"]


def test_loops_run_as_often_as_they_say_or_as_we_say() -> None:
    turn = 2 * 256 * 128 * 4
    asked: list[tuple[Sources, int]] = []

    def turns(sources: Sources, depth: int) -> int:
        asked.append((sources, depth))
        return 5

    traffic = traffic_of(parse_module(texts.LOOPS), turns=turns)
    assert traffic.total == 5 * 24 * turn
    assert asked == [(("/src/deployments/lm/recurrence.py",), 0)]
    assert [(loop.turns, loop.total) for loop in traffic.loops] == [(5, 24 * turn)]


def compiled(run: Callable[..., Any], *shapes: Any, chip: str, donated: tuple[int, ...] = ()) -> Module:
    mesh = Mesh(make_mesh(absent_devices(f"{chip}:1x1x1")[:1]).devices, ("model",))
    whole = NamedSharding(mesh, PartitionSpec())
    taken = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)
    return parse_module(jax.jit(run, donate_argnums=donated).lower(*taken).compile().as_text() or "")


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def int8_stack(weights: list[tuple[Any, Any]], x: Any) -> Any:
    for pair in weights:
        for weight in pair:
            step = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
            levels = jnp.round(x / step).astype(jnp.int8)
            product = jax.lax.dot_general(levels, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
            x = product.astype(jnp.float32) * step
    return x


@pytest.mark.parametrize("chip", CHIPS)
def test_an_int8_stack_reads_its_weights_once(chip: str) -> None:
    """XLA's own count of the same program is up to 2.4 times its weights."""
    pair = (shape(INNER, WIDTH, dtype=jnp.int8), shape(WIDTH, INNER, dtype=jnp.int8))
    traffic = traffic_of(compiled(int8_stack, [pair] * LAYERS, shape(ROWS, WIDTH), chip=chip))
    weights = LAYERS * 2 * WIDTH * INNER
    assert weights <= traffic.total <= 1.05 * weights
    assert sum(product.total for product in traffic.products if product.is_int8) == 2 * ROWS * weights


def test_rows_of_a_table_are_not_the_table() -> None:
    def embed(table: Any, tokens: Any) -> Any:
        return table[tokens].astype(jnp.float32)

    module = compiled(embed, shape(65536, 1024, dtype=jnp.bfloat16), shape(8, dtype=jnp.int32), chip="v6e")
    rows = 8 * 1024
    assert rows * 2 <= traffic_of(module).total <= 4 * rows * (2 + 4)


def test_rows_written_to_a_donated_cache_are_not_the_cache() -> None:
    def write(cache: Any, pages: Any, offsets: Any, rows: Any) -> Any:
        return cache.at[pages, :, :, offsets, :].set(rows, mode="promise_in_bounds")

    numbers = shape(8, dtype=jnp.int32)
    cache = shape(1025, 2, 8, 64, 128, dtype=jnp.bfloat16)
    rows = shape(8, 2, 8, 128, dtype=jnp.bfloat16)
    module = compiled(write, cache, numbers, numbers, rows, chip="v6e", donated=(0,))
    assert module.aliased == {0}
    assert traffic_of(module).total <= 4 * 8 * 2 * 8 * 128 * 2


def test_a_loop_over_layers_counts_every_turn() -> None:
    def run(weight: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 12, lambda _, x: jnp.tanh(x @ weight), x)

    # Larger than VMEM, so that every turn reads it.
    weight, x = shape(8192, 8192, dtype=jnp.bfloat16), shape(8, 8192, dtype=jnp.bfloat16)
    module = compiled(run, weight, x, chip="v5p")
    assert traffic_of(module).total == pytest.approx(12 * 8192 * 8192 * 2, rel=0.02)
