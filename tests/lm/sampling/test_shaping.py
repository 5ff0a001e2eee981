"""Penalties, biases and suppressed ends against definitions written out token by token, and against transformers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lm.sampling.shaping import Shaping, shape_logits
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.history import History

VOCABULARY, LONGEST, ROWS, BLOCKS = 700, 7, 16, 24


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One request's rows: its last token is the first row's, the drafts are the others'."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()

    @property
    def request(self) -> GenerateRequest:
        return GenerateRequest(
            request_id="r",
            prompt_ids=self.prompt,
            max_tokens=1000,
            sampling=self.sampling,
            min_tokens=self.min_tokens,
            end_ids=self.end_ids,
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        return ((*self.prompt, *self.reply)[-1], *self.drafts)


def expected(logits: np.ndarray, *, chain: Chain, place: int) -> np.ndarray:
    """The definition: what one row's prefix implies, in vLLM's order."""
    wanted = logits.astype(np.float64)
    said = Counter([*chain.reply, *chain.drafts[:place]])
    sampling = chain.sampling
    if said.total() < chain.min_tokens:
        wanted[[token for token in chain.end_ids if token < len(logits)]] = -np.inf
    for token, bias in sampling.logit_bias:
        wanted[token] += bias
    for token in {*chain.prompt, *said}:
        wanted[token] = (
            (wanted[token] / sampling.repetition_penalty)
            if wanted[token] > 0
            else (wanted[token] * sampling.repetition_penalty)
        )
    for token, count in said.items():
        wanted[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return wanted


_shape = jax.jit(lambda logits, tokens, shaping: shape_logits(logits, tokens=tokens, shaping=shaping, longest=LONGEST))


def shaped(logits: np.ndarray, *, chains: Sequence[Chain | int]) -> np.ndarray:
    """The chains one after the other; a number stands for so many rows that ask for nothing."""
    rows = np.tile(np.asarray([1, 0, 0, 0], np.float32), (len(logits), 1))
    tokens = np.zeros(len(logits), np.int32)
    blocks, first = [], 0
    for chain in chains:
        if isinstance(chain, int):
            first += chain
            continue
        own = History().blocks(chain.request, tokens=(*chain.prompt, *chain.reply), drafts=chain.drafts)
        count = len(chain.tokens)
        own[:, :2] = first, count
        blocks.append(own)
        tokens[first : first + count] = chain.tokens
        sampling = chain.sampling
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        rows[first : first + count, :3] = penalties
        rows[first : first + count, 3] = len(chain.reply) + np.arange(count) < chain.min_tokens
        first += count
    used = np.concatenate(blocks)
    padded = np.zeros((BLOCKS, used.shape[1]), np.int32)
    padded[: len(used)] = used
    return np.asarray(
        _shape(
            jnp.asarray(logits),
            tokens,
            Shaping(rows=jnp.asarray(rows), blocks=jnp.asarray(padded), used=jnp.int32(len(used))),
        )
    )


def some_logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, VOCABULARY)).astype(np.float32) * 4


ALL = SamplingSettings(
    repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=-0.4, logit_bias=((3, -100.0), (5, 7.5), (699, 1.0))
)


def check(logits: np.ndarray, *, chains: Sequence[Chain | int]) -> None:
    found = shaped(logits, chains=chains)
    first = 0
    for chain in chains:
        if isinstance(chain, int):
            np.testing.assert_array_equal(found[first : first + chain], logits[first : first + chain])
            first += chain
            continue
        for place in range(len(chain.tokens)):
            wanted = expected(logits[first], chain=chain, place=place)
            np.testing.assert_allclose(found[first], wanted, rtol=1e-5, atol=1e-5, err_msg=f"row {first}")
            first += 1
    np.testing.assert_array_equal(found[first:], logits[first:])


def test_every_row_of_a_block_sees_the_drafts_before_it() -> None:
    """Drafts that repeat, that were in the prompt, in the reply, or nowhere; and an unshaped neighbour on each side."""
    chain = Chain(
        prompt=(1, 2, 3, 2),
        reply=(9, 9, 4),
        drafts=(9, 7, 7, 2, 650, 7, 4),
        sampling=ALL,
        min_tokens=6,
        end_ids=(9, 11),
    )
    check(some_logits(), chains=[2, chain, 3, Chain(prompt=(8,), sampling=ALL)])


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.0])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    """`RepetitionPenaltyLogitsProcessor`: gather, multiply below 0, else divide, scatter; prompt and reply alike."""
    logits = some_logits(3)
    chain = Chain(prompt=(5, 6, 6), reply=(7, 650), sampling=SamplingSettings(repetition_penalty=penalty))
    wanted, seen = logits[0].copy(), np.array([*chain.prompt, *chain.reply])
    scores = wanted[seen]
    wanted[seen] = np.where(scores < 0, scores * np.float32(penalty), scores / np.float32(penalty))

    np.testing.assert_array_equal(shaped(logits, chains=[chain])[0], wanted)


def test_a_long_history_takes_several_blocks() -> None:
    prompt = tuple(np.random.default_rng(1).permutation(VOCABULARY)[:600].tolist())
    check(some_logits(4), chains=[1, Chain(prompt=prompt, reply=prompt[:5], drafts=(prompt[0], 1), sampling=ALL)])


def test_ends_are_out_of_reach_until_min_tokens() -> None:
    """In a block that crosses the border; an end that the vocabulary does not have is nobody's business."""
    chain = Chain(prompt=(1,), reply=(2,), drafts=(3, 4, 5), min_tokens=3, end_ids=(20, 21, 10**6))
    found = shaped(some_logits(5), chains=[chain])

    assert np.isneginf(found[:2, 20:22]).all()
    np.testing.assert_array_equal(found[2:4], some_logits(5)[2:4])


tokens = st.integers(0, VOCABULARY - 1) | st.integers(0, 6)
biases = st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=6).map(lambda found: tuple(found.items()))
samplings = st.builds(
    SamplingSettings,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.2]),
    presence_penalty=st.sampled_from([0.0, -1.5, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 1.0]),
    logit_bias=biases,
)
chains = st.builds(
    Chain,
    prompt=st.lists(tokens, min_size=1, max_size=20).map(tuple),
    reply=st.lists(tokens, max_size=12).map(tuple),
    drafts=st.lists(tokens, max_size=4).map(tuple),
    sampling=samplings,
    min_tokens=st.integers(0, 15),
    end_ids=st.lists(tokens, max_size=3).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(first=chains, second=chains, gap=st.integers(0, 3), seed=st.integers(0, 100))
def test_any_two_chains_beside_each_other(first: Chain, second: Chain, gap: int, seed: int) -> None:
    check(some_logits(seed), chains=[gap, first, gap, second])


def test_a_history_that_grows_is_the_one_built_at_once() -> None:
    request = Chain(prompt=(1, 2), sampling=ALL, min_tokens=2, end_ids=(4,)).request
    text = [1, 2, *np.random.default_rng(2).integers(0, VOCABULARY, 600).tolist()]
    growing = History()
    for length in (2, 3, 7, 8, 300, 602):
        drafts = tuple(text[length : length + 3])
        found = growing.blocks(request, tokens=text[:length], drafts=drafts)
        np.testing.assert_array_equal(found, History().blocks(request, tokens=text[:length], drafts=drafts))
