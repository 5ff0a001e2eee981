"""The k-th largest value, against a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.sampling.blocks import in_blocks
from deployments.lm.sampling.truncation import kth_largest
from tests.lm.sampling.test_blocks import KINDS, rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [64, 65, 3000])
def test_the_kth_largest_is_the_same_both_ways(kind: str, most: int) -> None:
    """One row that keeps more than 64 tokens sends all rows the other way."""
    logits = rows(kind)
    k = np.array([1, 2, 5, 20, 40, 63, 64, most], np.int32)
    blocks = in_blocks(jnp.asarray(logits))
    found = jax.jit(lambda x, k: kth_largest(x, maxima=jnp.max(x, axis=-1), k=k))(blocks, jnp.asarray(k))

    wanted = np.take_along_axis(-np.sort(-logits, axis=-1), k[:, None] - 1, axis=-1)[:, 0]
    np.testing.assert_array_equal(np.asarray(found), wanted)
