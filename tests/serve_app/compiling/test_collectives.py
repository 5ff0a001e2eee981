"""Exchanges between devices, from texts and from a program that is compiled for four chips."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from deployments.lm.mesh import AXIS, greatest, make_mesh, total
from deployments.lm.topologies import absent_devices
from serve_app.compiling.hlo import parse_module
from serve_app.compiling.traffic import traffic_of
from tests.serve_app.compiling import texts


def test_kinds_sizes_and_groups() -> None:
    found = {
        (one.kind, one.reduction): (one.size, one.group)
        for one in traffic_of(parse_module(texts.EXCHANGES)).collectives
    }
    assert found == {
        ("all-reduce", "max"): (128 * 4, 4),
        ("all-gather", ""): (32 * 128 * 4, 4),
        ("all-reduce", "sum"): (8 * 1024 * 4, 4),
    }


def test_bytes_on_the_wire_are_a_rings() -> None:
    by_kind = {(one.kind, one.reduction): one for one in traffic_of(parse_module(texts.EXCHANGES)).collectives}
    assert by_kind["all-reduce", "sum"].wire == pytest.approx(2 * 3 / 4 * 8 * 1024 * 4)
    assert by_kind["all-gather", ""].wire == pytest.approx(3 / 4 * 32 * 128 * 4)


def test_a_split_product_on_four_chips_has_one_sum_and_one_maximum() -> None:
    mesh = make_mesh(absent_devices("v5e:2x2x1"))

    def run(x: jax.Array, weight: jax.Array) -> jax.Array:
        most = greatest(jnp.max(jnp.abs(x), axis=-1, keepdims=True), axis=AXIS)
        levels = jnp.round(x / most * 127).astype(jnp.int8)
        product = jax.lax.dot_general(levels, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        return total(product, axis=AXIS)

    split = PartitionSpec(None, AXIS)
    each = jax.shard_map(run, mesh=mesh, in_specs=(split, split), out_specs=PartitionSpec(), check_vma=False)
    along = NamedSharding(mesh, split)
    taken = (
        jax.ShapeDtypeStruct((8, 4096), jnp.float32, sharding=along),
        jax.ShapeDtypeStruct((2048, 4096), jnp.int8, sharding=along),
    )
    traffic = traffic_of(parse_module(jax.jit(each).lower(*taken).compile().as_text() or ""))
    found = sorted((one.kind, one.reduction, one.group, one.times) for one in traffic.collectives)
    assert found == [("all-reduce", "max", 4, 1), ("all-reduce", "sum", 4, 1)]
    assert traffic.read == pytest.approx(2048 * 1024, rel=0.25)
