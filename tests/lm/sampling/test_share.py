"""Shares of a vocabulary; that draws over real shares are those over all is in `verifier/test_tensor_parallel.py`."""

import jax.numpy as jnp
import numpy as np

from deployments.lm.sampling.blocks import NO_TOKEN
from deployments.lm.sampling.share import Share, all_of


def test_tokens_of_other_devices_have_no_place() -> None:
    share = Share(axis=None, first=128, vocabulary=500)
    tokens = jnp.asarray([0, 127, 128, 255, 256, NO_TOKEN], jnp.int32)
    places = share.places(tokens, count=128)
    np.testing.assert_array_equal(places, [NO_TOKEN, NO_TOKEN, 0, 127, NO_TOKEN, NO_TOKEN])


def test_what_fills_a_share_up_is_cut_off() -> None:
    scores = jnp.zeros((2, 512), jnp.float32)
    assert Share(axis=None, first=0, vocabulary=500).whole(scores).shape == (2, 500)


def test_the_only_share_has_every_token() -> None:
    scores = jnp.asarray([[1.0, 3.0, 2.0]], jnp.float32)
    share = all_of(3)
    assert share.whole(scores).tolist() == scores.tolist()
    assert share.largest(scores[0]).tolist() == scores[0].tolist()
    assert Share.of(scores, axis=None, vocabulary=3).first == 0
