"""Linear layers: what quantising costs, channel by channel, and that a row's product ignores its neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.quant.linear import FloatLinear, Int8Linear, Precision, build_linear, join_linear, quantise

OUTPUTS, INPUTS, ROWS = 320, 192, 128
SIZES = (8, 12, 16, 24, 32, 48, 64, 96, 128)


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    """Channels of very different size, one of them zero, as no single scale could hold them."""
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(OUTPUTS, INPUTS)) * 10.0 ** rng.uniform(-3, 2, size=(OUTPUTS, 1))
    matrix[7] = 0.0
    return matrix.astype(np.float32)


@pytest.fixture(scope="module")
def activations() -> np.ndarray:
    """Rows of very different size, with outliers as real activations have them."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(ROWS, INPUTS)) * 10.0 ** rng.uniform(-2, 2, size=(ROWS, 1))
    rows[:, 5] *= 40.0
    return rows.astype(np.float32)


def quantised(weight: np.ndarray, *, precision: Precision) -> Int8Linear:
    layer = build_linear(weight, precision=precision)
    assert isinstance(layer, Int8Linear)
    return layer


def stored(layer: Int8Linear) -> np.ndarray:
    """The weights as the layer has them, in float64."""
    levels = np.asarray(layer.weight[...], np.float64)
    return levels * np.asarray(layer.scale[...], np.float64)[:, None]


def test_weights_are_scaled_channel_by_channel(weight: np.ndarray) -> None:
    layer = quantised(weight, precision=Precision.INT8)
    scale = np.asarray(layer.scale[...])

    np.testing.assert_allclose(scale, np.maximum(np.abs(weight).max(axis=1), 1e-9) / 127.0, rtol=1e-6)
    assert np.all(np.abs(np.asarray(layer.weight[...])).max(axis=1)[scale > 1e-10] == 127)
    assert np.all(np.abs(weight - stored(layer)) <= scale[:, None] * 0.5001)
    assert not stored(layer)[7].any()


@pytest.mark.parametrize(("precision", "steps"), [(Precision.INT8, 256.0), (Precision.INT8_PLAIN, 1.0)])
def test_activations_lose_half_a_step_at_most(
    weight: np.ndarray, activations: np.ndarray, precision: Precision, steps: float
) -> None:
    layer = quantised(weight, precision=precision)
    product = np.asarray(layer(jnp.asarray(activations)), np.float64)
    exact = activations.astype(np.float64) @ stored(layer).T
    step = np.abs(activations).max(axis=1, keepdims=True) / 127.0
    bound = 0.5 * step / steps * np.abs(stored(layer)).sum(axis=1)[None, :]
    rounding = 1e-6 * np.abs(activations).astype(np.float64) @ np.abs(stored(layer)).T

    assert np.all(np.abs(product - exact) <= bound + rounding)


@pytest.mark.parametrize(("inputs", "bits"), [(192, 8), (520, 8), (521, 7), (4096, 5), (14_336, 3), (133_000, 0)])
def test_activations_have_as_many_bits_as_the_sums_have_room_for(inputs: int, bits: int) -> None:
    """The largest activations that there are, and weights at their largest: one bit more, and the sum is another."""
    weight = np.ones((8, inputs), np.float32)
    assert quantise(weight).bits == bits
    layer = quantised(weight, precision=Precision.INT8)
    x = jnp.asarray(np.where(np.arange(8)[:, None] % 2, -3.0, 3.0) * np.ones((8, inputs)), jnp.float32)
    exact = np.asarray(x, np.float64) @ stored(layer).T
    np.testing.assert_allclose(layer(x), exact, rtol=1e-6)
    if bits < 8:
        more = Int8Linear(layer.weight[...], scale=layer.scale[...], bits=jnp.int32(bits + 1))
        assert np.max(np.abs(np.asarray(more(x)) / exact - 1)) > 0.5


def test_ordinary_weights_leave_more_bits_than_the_largest_would() -> None:
    """Levels of weights that are spread like a trained network's add up to a quarter of what they could."""
    weight = np.random.default_rng(0).normal(size=(64, 14_336)).astype(np.float32)
    assert quantise(weight).bits == 5


def test_weights_that_are_one_layer_have_the_bits_of_the_least() -> None:
    few, many = np.ones((2, 4096), np.float32), np.eye(2, 4096, dtype=np.float32)
    layer = join_linear((many, few), precision=Precision.INT8)
    assert isinstance(layer, Int8Linear)
    assert layer.bits is not None
    assert (quantise(many).bits, int(layer.bits[...])) == (8, 5)


@pytest.mark.parametrize("bits", range(9))
def test_activations_are_rounded_to_so_many_bits(weight: np.ndarray, activations: np.ndarray, bits: int) -> None:
    built = quantised(weight, precision=Precision.INT8)
    layer = Int8Linear(built.weight[...], scale=built.scale[...], bits=jnp.int32(bits))
    step = np.abs(activations).max(axis=1, keepdims=True).astype(np.float32) * np.float32(1 / 127) / np.float32(2**bits)
    levels = np.round(activations * (np.float32(1) / step)).astype(np.float64)
    exact = (levels * step) @ stored(built).T

    np.testing.assert_allclose(layer(jnp.asarray(activations)), exact, rtol=1e-6, atol=1e-30)


def test_the_second_product_is_worth_two_orders(weight: np.ndarray, activations: np.ndarray) -> None:
    one, two = (quantised(weight, precision=kind) for kind in (Precision.INT8_PLAIN, Precision.INT8))
    exact = activations.astype(np.float64) @ stored(two).T
    scale = np.abs(exact).mean(axis=0) + 1e-30
    lost = [float(np.mean(np.abs(np.asarray(layer(jnp.asarray(activations))) - exact) / scale)) for layer in (one, two)]

    assert lost[0] > 100 * lost[1] > 0


def test_int8_stays_close_to_f32(weight: np.ndarray, activations: np.ndarray) -> None:
    """With both roundings: per output, within a percent of what the row can reach."""
    exact = activations.astype(np.float64) @ weight.astype(np.float64).T
    reach = np.linalg.norm(activations, axis=1)[:, None] * np.linalg.norm(weight, axis=1)[None, :] + 1e-30
    product = np.asarray(build_linear(weight, precision=Precision.INT8)(jnp.asarray(activations)))

    assert np.max(np.abs(product - exact) / reach) < 0.01


def test_int8_weights_alone_lose_what_bf16_activations_lose(weight: np.ndarray, activations: np.ndarray) -> None:
    """The product is that of the levels and the rounded activations, and nothing else is rounded."""
    layer = quantised(weight, precision=Precision.W8A16)
    rounded = activations.astype(jnp.bfloat16).astype(np.float64)
    reach = np.abs(rounded) @ np.abs(stored(layer)).T + 1e-30
    product = np.asarray(layer(jnp.asarray(activations)))

    assert product.dtype == np.float32
    assert layer.weight[...].dtype == jnp.int8
    assert np.max(np.abs(product - rounded @ stored(layer).T) / reach) < 2e-6


def test_float_layers_are_products(weight: np.ndarray, activations: np.ndarray) -> None:
    reach = np.abs(activations).astype(np.float64) @ np.abs(weight).astype(np.float64).T + 1e-30
    exact = activations.astype(np.float64) @ weight.astype(np.float64).T
    for precision, tolerance in ((Precision.F32, 2e-6), (Precision.BF16, 2.0**-7)):
        layer = build_linear(weight, precision=precision)
        assert isinstance(layer, FloatLinear)
        product = layer(jnp.asarray(activations))
        assert product.dtype == jnp.float32
        assert np.max(np.abs(np.asarray(product) - exact) / reach) < tolerance


@pytest.mark.parametrize("precision", list(Precision))
def test_a_row_has_the_same_bits_beside_any_others(
    weight: np.ndarray, activations: np.ndarray, precision: Precision
) -> None:
    layer = build_linear(weight, precision=precision)
    run = jax.jit(lambda x: layer(x))
    whole = np.asarray(run(jnp.asarray(activations))).view(np.uint32)
    for rows in SIZES:
        for start in (0, ROWS - rows):
            part = np.asarray(run(jnp.asarray(activations[start : start + rows]))).view(np.uint32)
            np.testing.assert_array_equal(part, whole[start : start + rows])
    strange = activations.copy()
    strange[1:] *= -1e3
    np.testing.assert_array_equal(np.asarray(run(jnp.asarray(strange))).view(np.uint32)[0], whole[0])


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_PLAIN, Precision.W8A16])
def test_an_empty_row_is_zero_and_not_a_division_by_it(weight: np.ndarray, precision: Precision) -> None:
    product = np.asarray(build_linear(weight, precision=precision)(jnp.zeros((8, INPUTS), jnp.float32)))

    assert not product.any()
