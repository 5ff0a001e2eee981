"""The noise: a function of its key, even along every axis, and never above its bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deployments.lm.sampling.noise import gumbel, gumbel_bound, hashed
from tests.lm.sampling.test_drawing import Choice, key_of

_hashed = jax.jit(
    lambda rows, vocabulary: hashed(key_of(rows), tokens=jnp.arange(vocabulary, dtype=jnp.int32)[None, :]),
    static_argnames="vocabulary",
)


def noise(settings: Choice, *, positions: np.ndarray, vocabulary: int = 256) -> np.ndarray:
    return np.asarray(gumbel(_hashed(settings.rows(positions), vocabulary=vocabulary)))


def test_noise_is_a_function_of_its_key() -> None:
    places = np.arange(16)
    once = noise(Choice(seed=5, choice=1), positions=places)

    np.testing.assert_array_equal(noise(Choice(seed=5, choice=1), positions=places), once)
    np.testing.assert_array_equal(noise(Choice(seed=5, choice=1), positions=places[::-1]), once[::-1])
    np.testing.assert_array_equal(noise(Choice(seed=5, choice=1), positions=places, vocabulary=100), once[:, :100])
    for other in (Choice(seed=6, choice=1), Choice(seed=5, choice=2), Choice(seed=1, choice=5)):
        assert np.mean(noise(other, positions=places) == once) < 0.01
    assert np.mean(once[0] == once[1]) < 0.01
    assert np.isfinite(noise(Choice(seed=2**32 - 1, choice=2**32 - 1), positions=np.array([0, 2**31, 2**32 - 1]))).all()


def test_noise_is_the_same_in_every_version() -> None:
    """A seed is a promise to clients, and drafters draw with the same noise: other values here are another API."""
    found = noise(Choice(seed=1234, choice=2), positions=np.array([0, 77]), vocabulary=3)

    np.testing.assert_allclose(found, NOISE, rtol=1e-5)


NOISE = [[0.512044, -1.612552, 1.361173], [-0.788988, -0.685787, 2.982863]]


def uniform(settings: list[Choice], *, positions: np.ndarray, vocabulary: int) -> np.ndarray:
    """Noise turned back into shares of one: settings, positions, tokens."""
    return np.stack([np.exp(-np.exp(-noise(one, positions=positions, vocabulary=vocabulary))) for one in settings])


@pytest.fixture(scope="module")
def shares() -> np.ndarray:
    """256 seeds, 32 positions, 256 tokens."""
    return uniform([Choice(seed=seed) for seed in range(256)], positions=np.arange(32), vocabulary=256)


def even(table: np.ndarray) -> float:
    """The p-value of a table that should be even."""
    return float(stats.chisquare(table.ravel()).pvalue)


def test_noise_is_uniform_along_every_axis(shares: np.ndarray) -> None:
    bins = np.minimum((shares * 64).astype(int), 63)

    assert even(np.bincount(bins.ravel(), minlength=64)) > 1e-4
    for axis in range(3):
        for index in (0, 1, 17, 31):
            assert even(np.bincount(np.take(bins, index, axis=axis).ravel(), minlength=64)) > 1e-5


@pytest.mark.parametrize("axis", range(3), ids=["seeds", "positions", "tokens"])
@pytest.mark.parametrize("distance", [1, 2, 3, 16])
def test_neighbours_along_every_axis_are_independent(shares: np.ndarray, axis: int, distance: int) -> None:
    bins = np.moveaxis(np.minimum((shares * 16).astype(int), 15), axis, 0)
    left, right = bins[:-distance].ravel(), bins[distance:].ravel()

    assert even(np.bincount(16 * left + right, minlength=256)) > 1e-4


def test_a_token_whose_number_is_its_position_is_like_any_other() -> None:
    """Where both are mixed alike they cancel, and such a token is drawn whatever its logit."""
    found = noise(Choice(seed=11), positions=np.arange(2048), vocabulary=2048)
    shares = np.exp(-np.exp(-np.diagonal(found)))

    assert even(np.bincount((shares * 32).astype(int), minlength=32)) > 1e-4
    firsts = np.array([noise(Choice(seed=seed), positions=np.zeros(1, int), vocabulary=1)[0, 0] for seed in range(64)])
    assert firsts.max() < 15


def test_choices_and_seeds_are_independent() -> None:
    by_choice = uniform(
        [Choice(seed=9, choice=choice) for choice in range(128)], positions=np.arange(16), vocabulary=64
    )
    by_seed = uniform([Choice(seed=9 + seed) for seed in range(128)], positions=np.arange(16), vocabulary=64)
    for left, right in ((by_choice[:-1], by_choice[1:]), (by_choice[1:], by_seed[1:])):
        a, b = (np.minimum((x * 16).astype(int), 15).ravel() for x in (left, right))
        assert even(np.bincount(16 * a + b, minlength=256)) > 1e-4


def test_small_shares_keep_their_resolution() -> None:
    """The tail that decides rare tokens: of 4 million draws the largest noise lies where it should."""
    rows = np.concatenate([noise(Choice(seed=s), positions=np.arange(64), vocabulary=4096).ravel() for s in range(16)])
    expected = np.log(len(rows))

    assert expected - 3 < rows.max() < expected + 10
    assert len(np.unique(rows[rows > 8])) > 0.99 * np.sum(rows > 8)


def test_the_bound_is_one_and_close_where_it_matters() -> None:
    """At every power of two, between them, at both ends, and for a million bits at random."""
    edges = (2 ** np.arange(32, dtype=np.uint64))[:, None] + np.arange(-2, 3, dtype=np.int64)[None, :].astype(np.uint64)
    some = np.random.default_rng(4).integers(0, 2**32, 1_000_000, dtype=np.uint64)
    small = np.exp(np.random.default_rng(5).uniform(0, np.log(2**32), 100_000)).astype(np.uint64)
    bits = np.concatenate([edges.ravel() % 2**32, some, small % 2**32, [0, 2**32 - 1]]).astype(np.uint32)
    noise, bound = (np.asarray(jax.jit(of)(jnp.asarray(bits)[None, :])) for of in (gumbel, gumbel_bound))

    assert np.all(bound > noise)
    # The halved bits of the very smallest differ from them by more than a rounding.
    assert np.all((bound - noise)[(noise > 5) & (bits >= 128)[None, :]] < 0.07)
