"""Attention without a window gives, bit for bit, what it gave before there were windows.

The formula below is that one. Recorded noise levels and evidence about exactness were taken with it.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from deployments.lm.attention import PAIR, Tiles
from deployments.lm.sums import row_sum
from tests.lm.slots import PARTS, Shape, attended, attending, same_bits

SHAPES = (
    Shape(heads=6, kv_heads=2, width=8, page_size=16),
    Shape(heads=9, kv_heads=3, width=64, page_size=16),
)


class Running(NamedTuple):
    peak: jax.Array
    mass: jax.Array
    sums: jax.Array


@jax.jit
def attend_before(queries: jax.Array, cache: jax.Array, tiles: Tiles) -> jax.Array:
    kv_heads, page_size, width = cache.shape[2:]
    count, lanes = tiles.rows.shape
    group = queries.shape[1] // kv_heads
    tiled = (queries * width**-0.5)[tiles.rows].reshape(count, lanes, kv_heads, group, width)
    tiled = tiled.transpose(0, 2, 1, 3, 4).reshape(count, kv_heads, lanes * group, width).astype(cache.dtype)
    limits = jnp.repeat(tiles.positions, group, axis=1)[:, None, :, None]
    ends = jnp.max(tiles.positions.reshape(-1, PAIR * lanes), axis=1) // page_size + 1

    def pair(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * PAIR
        own, limit, pages = (jax.lax.dynamic_slice_in_dim(x, first, PAIR) for x in (tiled, limits, tiles.pages))
        done = over_pages(own, cache, limit, pages, ends[index])
        return jax.lax.dynamic_update_slice_in_dim(out, done, first, axis=0)

    out = jax.lax.fori_loop(0, jnp.sum(ends > 0), pair, jnp.zeros(tiled.shape))
    out = out.reshape(count, kv_heads, lanes, group, width).transpose(0, 2, 1, 3, 4).reshape(count * lanes, -1)
    # Lanes of padding hold what masked positions left there; nobody reads them but the test.
    return jnp.where(tiles.positions.reshape(-1, 1) < 0, 0, out)[tiles.lane_of_row]


def over_pages(
    queries: jax.Array, cache: jax.Array, limits: jax.Array, pages: jax.Array, count: jax.Array
) -> jax.Array:
    halves = cache.reshape(-1, *cache.shape[2:])

    def step(index: jax.Array, state: Running) -> Running:
        page = jax.lax.dynamic_index_in_dim(pages, index, axis=1, keepdims=False)
        keys, values = halves[2 * page], halves[2 * page + 1]
        seen = index * cache.shape[3] + jnp.arange(cache.shape[3]) <= limits
        scores = jnp.where(seen, product("tkqd,tkpd->tkqp", queries, keys), -1e30)
        peak = jnp.maximum(state.peak, jnp.max(scores, axis=-1, keepdims=True))
        weights, shrink = jnp.exp(scores - peak), jnp.exp(state.peak - peak)
        added = product("tkqp,tkpd->tkqd", weights.astype(values.dtype), values)
        return Running(peak=peak, mass=state.mass * shrink + row_sum(weights), sums=state.sums * shrink + added)

    empty = jnp.zeros((*queries.shape[:3], 1))
    start = Running(peak=empty - 1e30, mass=empty, sums=jnp.zeros(queries.shape))
    end: Running = jax.lax.fori_loop(0, count, step, start)
    return end.sums / end.mass


def product(names: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(names, left, right, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_has_changed(shape: Shape, dtype: jnp.dtype) -> None:
    shape = replace(shape, dtype=dtype)
    same_bits(attended(PARTS, attending(), shape=shape), attended(PARTS, attend_before, shape=shape))
