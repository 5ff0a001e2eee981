"""The sampler against numpy: which tokens may be drawn, how often, and that a draw depends on nothing but its key."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deployments.lm.sampling.drawing import Draws, SamplerRows, draw
from deployments.lm.sampling.noise import NoiseKey, gumbel, hashed, noise_key

VOCABULARY, DRAWS = 64, 2048
_draw = jax.jit(lambda logits, settings: draw(logits, settings=settings))


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


def key_of(rows: SamplerRows) -> NoiseKey:
    return noise_key(seed=rows.seed, choice=rows.choice, position=rows.position)


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


@pytest.mark.parametrize("rows", [8, 32])
def test_skipping_blocks_loses_no_winner(rows: int) -> None:
    """Against noise computed for every token, with a vocabulary of many blocks and one that fills no whole number."""
    vocabulary = 5000
    logits = np.random.default_rng(rows).normal(size=(rows, vocabulary)).astype(np.float32) * 4
    for temperature in (0.2, 1.0, 2.0):
        settings = Choice(temperature=temperature, seed=rows).rows(np.arange(rows))
        tokens = jnp.arange(vocabulary, dtype=jnp.int32)[None, :]
        noise = np.asarray(gumbel(hashed(key_of(settings), tokens=tokens)), np.float64)
        result = _draw(jnp.asarray(logits), settings)
        scores = logits + np.float64(np.float32(temperature)) * noise

        np.testing.assert_array_equal(np.asarray(result.tokens), scores.argmax(axis=1))
        np.testing.assert_allclose(np.asarray(result.scores), scores.max(axis=1), rtol=1e-5)


def test_rows_that_are_not_numbers_end_and_leave_others_alone() -> None:
    logits = np.random.default_rng(6).normal(size=(8, 1000)).astype(np.float32)
    settings = Choice(top_p=0.9, top_k=50).rows(np.arange(8))
    wanted = np.asarray(_draw(jnp.asarray(logits), settings).tokens)
    broken = logits.copy()
    broken[2], broken[3, 5], broken[4] = np.nan, np.nan, -np.inf
    found = np.asarray(_draw(jnp.asarray(broken), settings).tokens)

    np.testing.assert_array_equal(np.delete(found, [2, 3, 4]), np.delete(wanted, [2, 3, 4]))
    assert np.all((found >= 0) & (found < 1000))
