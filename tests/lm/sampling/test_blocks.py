"""Large values and sums found through blocks, against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.sampling.blocks import folded_sum, in_blocks, largest


def rows(kind: str, *, count: int = 8, vocabulary: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(size=(count, vocabulary)).astype(np.float32) * 3
    match kind:
        case "ties":
            return np.round(logits)
        case "banned":
            return np.where(rng.random(logits.shape) < 0.9, -np.inf, logits).astype(np.float32)
        case "together":  # all large ones in one block
            return np.sort(logits, axis=-1)
        case _:
            return logits


KINDS = ["plain", "ties", "banned", "together"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [70, 128, 3000])
def test_the_largest_are_found_in_order_and_in_place(kind: str, vocabulary: int) -> None:
    logits = rows(kind, vocabulary=vocabulary)
    blocks = in_blocks(jnp.asarray(logits))
    values, places = largest(blocks, maxima=jnp.max(blocks, axis=-1), count=20)

    np.testing.assert_array_equal(np.asarray(values), -np.sort(-logits, axis=-1)[:, :20])
    there = np.isfinite(np.asarray(values))
    found = np.take_along_axis(logits, np.where(there, np.asarray(places), 0), axis=-1)
    np.testing.assert_array_equal(found[there], np.asarray(values)[there])
    for row, own in zip(np.asarray(places), there, strict=True):
        assert len(set(row[own])) == own.sum()


@pytest.mark.parametrize("vocabulary", [70, 3000, 49152])
def test_a_sum_is_the_same_beside_any_number_of_rows(vocabulary: int) -> None:
    logits = rows("plain", count=64, vocabulary=vocabulary)
    summed = jax.jit(lambda x: folded_sum(in_blocks(x), term=jnp.exp))
    whole = np.asarray(summed(jnp.asarray(logits)))

    np.testing.assert_allclose(whole, np.exp(logits.astype(np.float64)).sum(axis=1), rtol=1e-5)
    for size in (8, 16, 32):
        assert np.asarray(summed(jnp.asarray(logits[-size:]))).tobytes() == whole[-size:].tobytes()
