"""Stacks of linear layers: each is the layer it would be alone, and they are built one at a time."""

import gc
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.kernels.choice import Kernels
from deployments.lm.kernels.native import choose_kernels
from deployments.lm.quant.linear import Precision, build_linear
from deployments.lm.quant.stacked import build_stacked

EXPERTS, OUTPUTS, INPUTS = 5, 48, 64


def weight_of(expert: int) -> np.ndarray:
    return np.random.default_rng(expert).normal(scale=1.0 + expert, size=(OUTPUTS, INPUTS)).astype(np.float32)


@pytest.mark.parametrize("precision", list(Precision))
def test_each_is_the_layer_it_would_be_alone(precision: Precision) -> None:
    stacked = build_stacked(weight_of, experts=EXPERTS, precision=precision)
    x = jnp.asarray(np.random.default_rng(9).normal(size=(8, INPUTS)), jnp.float32)
    one_of = jax.jit(lambda number, x: stacked.expert(number)(x))

    for expert in range(EXPERTS):
        alone = jax.jit(build_linear(weight_of(expert), precision=precision).__call__)
        np.testing.assert_array_equal(one_of(expert, x), alone(x))
    assert stacked.native is None


def test_native_ones_are_kept_as_their_kernel_reads_them() -> None:
    chosen, reason = choose_kernels(Kernels.AUTO, cache=Path.home() / ".cache" / "outrider" / "kernels")
    if chosen is not Kernels.NATIVE:
        pytest.skip(f"no native kernels here: {reason}")
    native = build_stacked(weight_of, experts=EXPERTS, precision=Precision.INT8, kernels=Kernels.NATIVE).native
    assert native is not None

    assert native.weight[...].shape == (EXPERTS, OUTPUTS // 16, INPUTS // 4, 64)
    assert native.scale[...].shape == (EXPERTS, OUTPUTS)


@pytest.mark.slow
def test_only_one_is_held_in_f32_at_a_time() -> None:
    living: list[weakref.ref[np.ndarray]] = []

    def read(expert: int) -> np.ndarray:
        gc.collect()
        assert sum(kept() is not None for kept in living) == 0
        weight = weight_of(expert)
        living.append(weakref.ref(weight))
        return weight

    build_stacked(read, experts=EXPERTS, precision=Precision.INT8)
    assert len(living) == EXPERTS


def test_a_stack_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one expert"):
        build_stacked(weight_of, experts=0, precision=Precision.F32)
