"""Extras on their way to the device: as many blocks as are used, in the one shape that programs take."""

import jax
import numpy as np
import pytest

from deployments.lm.sampling.shaping import BLOCK_FIELDS
from deployments.verifier.packing import PackedExtras, no_shaping
from deployments.verifier.supplying import ExtrasSupply

SUPPLY = ExtrasSupply(sizes=(8, 16), slots=3, context=2048, longest=7)


@pytest.mark.parametrize("used", [0, 1, 4, 5, 17, 36])
def test_a_windows_blocks_come_first_and_the_rest_is_empty(used: int) -> None:
    blocks = np.random.default_rng(used).integers(1, 99, (used, BLOCK_FIELDS)).astype(np.int32)
    found = SUPPLY.some(PackedExtras(rows=no_shaping(8), blocks=blocks, wants_logprobs=bool(used % 2)))

    assert np.asarray(found.blocks).shape == np.asarray(SUPPLY.none(8).blocks).shape == (36, BLOCK_FIELDS)
    np.testing.assert_array_equal(np.asarray(found.blocks)[:used], blocks)
    assert not np.asarray(found.blocks)[used:].any()
    assert np.asarray(found.numbers).tolist() == [used, used % 2]


def test_asking_for_nothing_moves_nothing() -> None:
    """The same arrays every time, on the device already."""
    for size in (8, 16):
        nothing = SUPPLY.none(size)
        assert all(isinstance(part, jax.Array) for part in nothing)
        assert nothing.rows.shape[0] == size
        assert np.asarray(nothing.numbers).tolist() == [0, 0]
        assert all(one is other for one, other in zip(nothing, SUPPLY.none(size), strict=True))
