"""The sampler against numpy: which tokens may be drawn, how often, and that a draw depends on nothing but its key."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deployments.lm.sampling import Draws, SamplerRows, draw, gumbel

VOCABULARY, DRAWS = 64, 2048
_draw = jax.jit(lambda logits, settings: draw(logits, settings=settings))
_gumbel = jax.jit(gumbel, static_argnames="vocabulary")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A request's sampler settings."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0

    def rows(self, positions: np.ndarray) -> SamplerRows:
        count = len(positions)
        return SamplerRows(
            temperature=jnp.full(count, self.temperature, jnp.float32),
            top_k=jnp.full(count, self.top_k, jnp.int32),
            top_p=jnp.full(count, self.top_p, jnp.float32),
            min_p=jnp.full(count, self.min_p, jnp.float32),
            seed=jnp.full(count, self.seed, jnp.uint32),
            choice=jnp.full(count, self.choice, jnp.uint32),
            position=jnp.asarray(positions, jnp.uint32),
        )


def draws(logits: np.ndarray, *, settings: Choice, count: int = DRAWS) -> np.ndarray:
    """The tokens drawn from the same logits at positions 0 .. count - 1."""
    rows = jnp.asarray(np.broadcast_to(logits.astype(np.float32), (count, len(logits))))
    return np.asarray(_draw(rows, settings.rows(np.arange(count))).tokens)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What numpy allows. Tokens within rounding of a limit may go either way: they are in `may` and not in `must`."""

    may: np.ndarray
    must: np.ndarray
    shares: np.ndarray


def allowed(logits: np.ndarray, *, settings: Choice) -> Allowed:
    """Temperature, `min_p`, `top_k`, `top_p`, as vLLM orders them, in float64 and by sorting."""
    with np.errstate(invalid="ignore"):
        scaled = logits.astype(np.float32).astype(np.float64) / np.float32(settings.temperature)
    shares = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    bounds = []
    for slack in (1e-5, -1e-5):
        kept = shares >= settings.min_p * shares.max() * (1 - slack)
        if 0 < settings.top_k < kept.sum():
            # By logit and not by share, which may underflow: as in vLLM every tie of the last place stays.
            kept &= scaled >= np.sort(scaled[kept])[-settings.top_k]
        total = shares[kept].sum()
        above = np.array([shares[kept & (scaled > own)].sum() for own in scaled])
        if settings.top_p < 1.0:
            kept &= (above < np.float32(settings.top_p) * total * (1 + slack)) | (above == 0.0)
        bounds.append(kept)
    may, must = bounds
    return Allowed(may=may, must=must, shares=np.where(may, shares, 0.0) / shares[may].sum())


SETTINGS = (
    Choice(),
    Choice(temperature=0.3),
    Choice(temperature=1.9),
    Choice(min_p=0.1),
    Choice(top_k=5),
    Choice(top_k=1),
    Choice(top_k=1000),
    Choice(top_p=0.9),
    Choice(top_p=0.5, temperature=0.7),
    Choice(top_p=1e-6),
    Choice(temperature=0.8, top_k=20, top_p=0.8),
    Choice(temperature=1.3, min_p=0.02, top_k=12, top_p=0.95, seed=99, choice=3),
    Choice(min_p=1.0),
    Choice(min_p=0.3, top_p=0.7),
)


def ties(rng: np.random.Generator) -> np.ndarray:
    return np.round(rng.normal(size=VOCABULARY) * 2)


def banned(rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(VOCABULARY) < 0.7, -np.inf, rng.normal(size=VOCABULARY) * 2)


def extreme(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([[1e4, 1e4 + 1, 1e4 - 0.5], rng.normal(size=VOCABULARY - 4) * 1e4 - 1e5, [-3e38]])


def level(rng: np.random.Generator) -> np.ndarray:
    del rng
    return np.full(VOCABULARY, 2.5)


def single(rng: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(VOCABULARY) == int(rng.integers(VOCABULARY)), 0.0, -np.inf)


def plain(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=VOCABULARY) * 2


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", [plain, ties, banned, extreme, level, single])
def test_only_allowed_tokens_are_drawn_and_each_as_often_as_it_should(
    shape: Callable[[np.random.Generator], np.ndarray], settings: Choice
) -> None:
    logits = shape(np.random.default_rng(17))
    rule = allowed(logits, settings=settings)
    counts = np.bincount(draws(logits, settings=settings), minlength=VOCABULARY)

    assert not counts[~rule.may].any(), np.flatnonzero((counts > 0) & ~rule.may)
    assert np.all(counts[rule.must & (rule.shares > 0.02)] > 0)
    if np.array_equal(rule.may, rule.must):
        common = rule.shares * DRAWS >= 5
        seen = np.append(counts[common], counts[~common].sum())
        wanted = np.append(rule.shares[common], rule.shares[~common].sum()) * DRAWS
        statistic = float(np.sum((seen - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]))
        assert statistic < stats.chi2.isf(1e-5, max(int((wanted > 0).sum()) - 1, 1))


def test_a_nucleus_is_cut_after_top_k_has_cut() -> None:
    """The order matters: 0.5 of what `top_k` left is one token here, 0.5 of everything would be two."""
    logits = np.log(np.array([0.3, 0.25, 0.2, 0.15, 0.1]))

    assert set(draws(logits, settings=Choice(top_k=2, top_p=0.5))) == {0}
    assert set(draws(logits, settings=Choice(top_p=0.5))) == {0, 1}


@pytest.mark.parametrize("top_p", [0.0, 1e-45, 1e-30])
def test_an_empty_nucleus_still_holds_the_most_likely_token(top_p: float) -> None:
    logits = plain(np.random.default_rng(2))

    assert set(draws(logits, settings=Choice(top_p=top_p), count=64)) == {int(np.argmax(logits))}


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-12])
def test_greedy_takes_the_first_of_the_largest(temperature: float) -> None:
    rng = np.random.default_rng(3)
    logits = np.round(rng.normal(size=(32, VOCABULARY)) * 3).astype(np.float32)
    logits[5] = -np.inf
    logits[6] = -3e38
    settings = Choice(temperature=temperature, top_k=3, top_p=0.2, min_p=0.5).rows(np.arange(32))

    result = _draw(jnp.asarray(logits), settings)

    np.testing.assert_array_equal(np.asarray(result.tokens), np.argmax(logits, axis=-1))
    np.testing.assert_array_equal(np.asarray(result.scores), logits.max(axis=-1))


def bits(result: Draws) -> tuple[bytes, bytes]:
    return np.asarray(result.tokens).tobytes(), np.asarray(result.scores).tobytes()


def test_a_row_draws_the_same_beside_any_number_of_others() -> None:
    """Mixed settings, so that every branch runs for somebody else's sake."""
    rng = np.random.default_rng(8)
    logits = jnp.asarray(rng.normal(size=(64, 1000)) * 3, jnp.float32)
    mixed = [replace(SETTINGS[i % len(SETTINGS)], seed=i, temperature=0.0 if i % 7 == 3 else 0.9) for i in range(64)]
    settings = jax.tree.map(
        lambda *fields: jnp.concatenate(fields), *(one.rows(np.array([i])) for i, one in enumerate(mixed))
    )
    whole = _draw(logits, settings)
    for size in (8, 32):
        for start in (0, 64 - size):
            part = slice(start, start + size)
            some = _draw(logits[part], SamplerRows(*(field[part] for field in settings)))
            assert bits(some) == bits(Draws(tokens=whole.tokens[part], scores=whole.scores[part]))
    for row in range(0, 64, 5):
        alone = _draw(jnp.tile(logits[row], (8, 1)), SamplerRows(*(jnp.tile(f[row], 8) for f in settings)))
        assert {int(token) for token in alone.tokens} == {int(whole.tokens[row])}
        assert {float(score) for score in alone.scores} == {float(whole.scores[row])}


def noise(settings: Choice, *, positions: np.ndarray, vocabulary: int = 256) -> np.ndarray:
    return np.asarray(_gumbel(settings.rows(positions), vocabulary=vocabulary))


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
