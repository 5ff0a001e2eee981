"""Log-probabilities against float64, and that a row's own do not depend on the rows beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from deployments.lm.sampling.logprobs import MOST_TOP, logprobs_of

_logprobs_of = jax.jit(lambda logits, tokens: logprobs_of(logits, tokens=tokens))


@pytest.mark.parametrize("vocabulary", [40, 1000, 49152])
def test_they_are_the_log_softmax_of_the_logits(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(size=(8, vocabulary)).astype(np.float32) * 5
    tokens = rng.integers(0, vocabulary, 8).astype(np.int32)
    found = _logprobs_of(logits, tokens)
    wanted = log_softmax(logits.astype(np.float64), axis=-1)

    np.testing.assert_allclose(found.own, wanted[np.arange(8), tokens], atol=2e-5)
    np.testing.assert_allclose(found.top, -np.sort(-wanted, axis=-1)[:, :MOST_TOP], atol=2e-5)
    np.testing.assert_array_equal(found.top_tokens, np.argsort(-logits, axis=-1, kind="stable")[:, :MOST_TOP])


def test_a_row_reports_the_same_beside_any_number_of_others() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(32, 5000)).astype(np.float32) * 5
    tokens = np.arange(32, dtype=np.int32)
    whole = _logprobs_of(logits, tokens)
    for start in (0, 8, 24):
        some = _logprobs_of(jnp.asarray(logits[start : start + 8]), tokens[start : start + 8])
        for part, wanted in zip(some, whole, strict=True):
            assert np.asarray(part).tobytes() == np.asarray(wanted)[start : start + 8].tobytes()
