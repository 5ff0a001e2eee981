"""Lossless in distribution: what the jitted window emits, against probabilities known in closed form.

The network has no layers: the scores after a token are a column of a matrix, so a text is a Markov chain whose every
transition probability is known. Whatever drafts go in, transitions must occur as often as they should. Two wrong
rules, each of which a speculative sampler has been written with, are rejected by the same statistic.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array
from scipy import stats

from deployments.lm.decoder import Decoder, DecoderConfig
from deployments.lm.layers import Embedding, RMSNorm
from deployments.lm.quant.linear import FloatLinear
from deployments.lm.sampling.drawing import SamplerRows, draw
from deployments.lm.sampling.shaping import BLOCK_FIELDS
from deployments.verifier.packing import no_shaping
from deployments.verifier.window import EMIT_FLOATS, EMIT_INTS, EmitExtras, EmitInput, Emitted, emit

VOCABULARY, TEMPERATURE, CHAINS, TOKENS = 8, 0.7, 64, 13_000
SIGNIFICANCE = 1e-4
SCORES = np.random.default_rng(21).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32) * 0.8


def chances(temperature: float) -> np.ndarray:
    """`[token, next]`: how likely each token is after each."""
    weights = np.exp(SCORES.T.astype(np.float64) / np.float64(np.float32(temperature)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def build_markov() -> Decoder:
    """A network of no layers. A hidden state is its token as a unit vector; the norm brings it to length one."""
    config = DecoderConfig(
        architecture="markov",
        layers=0,
        width=VOCABULARY,
        heads=1,
        feed_forward=1,
        vocabulary=VOCABULARY,
        context=1 << 20,
        layout=(),
    )
    return Decoder(
        config,
        embedding=Embedding(jnp.eye(VOCABULARY)),
        blocks=[],
        norm=RMSNorm(jnp.full(VOCABULARY, VOCABULARY**-0.5, jnp.float32), epsilon=0.0),
        head=FloatLinear(jnp.asarray(SCORES)),
        rotary=[],
    )


class Chain(NamedTuple):
    """The tokens of one window: of each chain its last token and its drafts."""

    tokens: np.ndarray
    positions: np.ndarray


type Rule = Callable[[Decoder, Array, EmitInput, int], Emitted]
type Drafter = Callable[[Chain, int], np.ndarray]


def nothing_else(request: EmitInput) -> EmitExtras:
    """No penalties, no log-probabilities."""
    return EmitExtras(
        rows=no_shaping(len(request.ints)),
        blocks=np.zeros((1, BLOCK_FIELDS), np.int32),
        numbers=np.zeros(2, np.int32),
    )


def the_window(network: Decoder, hidden: Array, request: EmitInput, longest: int) -> Emitted:
    """The product."""
    return emit(network, hidden, request, nothing_else(request), longest=longest)


def accept_the_most_likely(network: Decoder, hidden: Array, request: EmitInput, longest: int) -> Emitted:
    """Wrong: keeps a draft that is the most likely token, as a greedy check would, whatever was drawn."""
    drawn = emit(network, hidden, request, nothing_else(request), longest=longest)
    tokens, first = jnp.asarray(request.ints)[:, 1], jnp.asarray(request.ints)[:, 2] == 1
    top = jnp.argmax(network.logits(hidden), axis=-1)
    return _replaced(drawn, tokens=tokens, first=first, kept=tokens == jnp.roll(top, 1))


def toss_a_coin_then_draw_anew(network: Decoder, hidden: Array, request: EmitInput, longest: int) -> Emitted:
    """Wrong: keeps a draft with the probability it has, else draws anew and forgets to leave the draft out."""
    tokens, first = jnp.asarray(request.ints)[:, 1], jnp.asarray(request.ints)[:, 2] == 1
    drawn = emit(network, hidden, request, nothing_else(request), longest=longest)
    scores = jax.nn.log_softmax(network.logits(hidden) / TEMPERATURE, axis=-1)
    coins = jax.random.uniform(jax.random.key(jnp.sum(jnp.asarray(request.ints)[:, 6])), tokens.shape)
    own = jnp.take_along_axis(jnp.roll(scores, 1, axis=0), tokens[:, None], axis=-1)[:, 0]
    return _replaced(drawn, tokens=tokens, first=first, kept=coins < jnp.exp(own))


def _replaced(drawn: Emitted, *, tokens: Array, first: Array, kept: Array) -> Emitted:
    """What a rule that keeps `kept` drafts emits: those, and the draw after the last of them."""
    kept = kept & ~first
    following = jnp.roll(kept, -1)
    return drawn._replace(tokens=jnp.where(following, jnp.roll(tokens, -1), drawn.tokens), live=kept)


class Sampler:
    """Chains that go on window by window, and how often each token followed each."""

    def __init__(self, rule: Rule, *, k: int) -> None:
        graph, self._state = nnx.split(build_markov())
        self._rows = CHAINS * (k + 1)
        self._k = k
        self._run = jax.jit(
            lambda state, hidden, ints, floats: rule(nnx.merge(graph, state), hidden, EmitInput(ints, floats), k)
        )
        self.chain = Chain(tokens=np.arange(CHAINS) % VOCABULARY, positions=np.ones(CHAINS, np.int64))
        self.counts = np.zeros((VOCABULARY, VOCABULARY), np.int64)
        self.kept = self.drafted = 0

    def step(self, drafter: Drafter) -> None:
        """One window."""
        drafts = drafter(self.chain, self._k)
        table = np.concatenate([self.chain.tokens[:, None], drafts], axis=1)
        ints = np.zeros((self._rows, EMIT_INTS), np.int32)
        ints[:, 0] = np.arange(self._rows)
        ints[:, 1] = table.ravel()
        ints[:, 2] = np.arange(self._rows) % (self._k + 1) == 0
        ints[:, 4] = np.repeat(np.arange(CHAINS), self._k + 1)
        ints[:, 6] = (self.chain.positions[:, None] + np.arange(self._k + 1)).ravel()
        floats = np.tile(np.asarray([TEMPERATURE, 1.0, 0.0], np.float32), (self._rows, 1))
        assert floats.shape[1] == EMIT_FLOATS
        hidden = jnp.eye(VOCABULARY, dtype=jnp.float32)[table.ravel()]
        emitted = self._run(self._state, hidden, ints, floats)
        self._count(np.asarray(emitted.tokens).reshape(table.shape), live=np.asarray(emitted.live).reshape(table.shape))

    def _count(self, draws: np.ndarray, *, live: np.ndarray) -> None:
        live = np.concatenate([np.ones((CHAINS, 1), bool), live[:, 1:]], axis=1)
        lengths = np.cumprod(live, axis=1).sum(axis=1)
        tokens = self.chain.tokens.copy()
        for place in range(draws.shape[1]):
            going = place < lengths
            np.add.at(self.counts, (tokens[going], draws[going, place]), 1)
            tokens[going] = draws[going, place]
        self.kept += int((lengths - 1).sum())
        self.drafted += CHAINS * self._k
        self.chain = Chain(tokens=tokens, positions=self.chain.positions + lengths)


def followed(chain: Chain, k: int, *, choose: np.ndarray) -> np.ndarray:
    """Drafts that take `choose[token]` after each token."""
    tokens, found = chain.tokens, []
    for _ in range(k):
        tokens = choose[tokens]
        found.append(tokens)
    return np.stack(found, axis=1)


def likely(chain: Chain, k: int) -> np.ndarray:
    """Biased: always the same guess after a token, and the one most often right."""
    return followed(chain, k, choose=SCORES.argmax(axis=0))


def unlikely(chain: Chain, k: int) -> np.ndarray:
    """Nearly always wrong."""
    return followed(chain, k, choose=SCORES.argmin(axis=0))


def one_token(chain: Chain, k: int) -> np.ndarray:
    """Biased towards one token, whatever came before."""
    return np.full((len(chain.tokens), k), 3)


def at_random(chain: Chain, k: int) -> np.ndarray:
    return np.random.default_rng(int(chain.positions.sum())).integers(0, VOCABULARY, size=(len(chain.tokens), k))


_draw = jax.jit(lambda scores, settings: draw(scores, settings=settings).tokens)


def foreseen(chain: Chain, k: int) -> np.ndarray:
    """Always right: the target's own draws, which depend on nothing that is not known before."""
    tokens, found = chain.tokens, []
    for place in range(k):
        settings = SamplerRows(
            temperature=jnp.full(CHAINS, TEMPERATURE, jnp.float32),
            top_k=jnp.zeros(CHAINS, jnp.int32),
            top_p=jnp.ones(CHAINS, jnp.float32),
            min_p=jnp.zeros(CHAINS, jnp.float32),
            seed=jnp.arange(CHAINS, dtype=jnp.uint32),
            choice=jnp.zeros(CHAINS, jnp.uint32),
            position=jnp.asarray(chain.positions + place, jnp.uint32),
        )
        tokens = np.asarray(_draw(jnp.asarray(SCORES.T[tokens]), settings))
        found.append(tokens)
    return np.stack(found, axis=1)


def run(rule: Rule, *, drafter: Drafter, k: int) -> Sampler:
    sampler = Sampler(rule, k=k)
    while sampler.counts.sum() < TOKENS:
        sampler.step(drafter)
    return sampler


def pearson(counts: np.ndarray, *, temperature: float = TEMPERATURE) -> tuple[float, float]:
    """Pearson's statistic of all transitions, and the value it exceeds one time in ten thousand."""
    expected = counts.sum(axis=1, keepdims=True) * chances(temperature)
    degrees = VOCABULARY * (VOCABULARY - 1)
    return float(((counts - expected) ** 2 / expected).sum()), float(stats.chi2.isf(SIGNIFICANCE, degrees))


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("drafter", [foreseen, likely, unlikely, one_token, at_random])
def test_the_window_is_lossless(drafter: Drafter, k: int) -> None:
    sampler = run(the_window, drafter=drafter, k=k)
    statistic, limit = pearson(sampler.counts)
    assert (sampler.counts.sum(axis=1, keepdims=True) * chances(TEMPERATURE)).min() > 5
    print(
        f"{sampler.counts.sum()} tokens, {sampler.kept} of {sampler.drafted} drafts kept, {statistic:.1f} < {limit:.1f}"
    )

    assert statistic < limit
    if drafter is foreseen:
        assert sampler.kept == sampler.drafted
    else:
        assert 0 < sampler.kept < sampler.drafted


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize(
    ("rule", "drafter"), [(accept_the_most_likely, likely), (toss_a_coin_then_draw_anew, one_token)]
)
def test_wrong_rules_are_rejected(rule: Rule, drafter: Drafter, k: int) -> None:
    statistic, limit = pearson(run(rule, drafter=drafter, k=k).counts)
    print(f"{statistic:.1f} > {limit:.1f}")

    assert statistic > limit


def test_another_temperature_is_noticed() -> None:
    """The statistic is sharp enough for an error of a fifth in one setting."""
    statistic, limit = pearson(run(the_window, drafter=at_random, k=1).counts, temperature=TEMPERATURE * 1.2)

    assert statistic > limit
