"""What drafts on the device against the strategy of the same kind on the host, token for token."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lm.drafting.chip import ChipDrafter, ChipDrafts, ngram_on_chip
from deployments.lm.drafting.ngram import NgramIndex, NgramSettings

SLOTS, CONTEXT, LONGEST = 3, 40, 8
TOKENS = st.lists(st.integers(0, 3), max_size=CONTEXT)


@cache
def drafter(min_n: int, max_n: int, max_k: int = LONGEST) -> ChipDrafter:
    rule = NgramSettings(min_n=min_n, max_n=max_n, max_k=max_k)
    compiled: ChipDrafter = jax.jit(ngram_on_chip(rule, longest=LONGEST))
    return compiled


def expected(tokens: list[int], *, k: int, min_n: int, max_n: int) -> tuple[int, ...]:
    index = NgramIndex(min_n=min_n, max_n=max_n)
    index.extend(tuple(tokens))
    return index.continuation(k=k) if k else ()


def drafted(found: ChipDrafts) -> list[tuple[int, ...]]:
    tokens, counts = np.asarray(found.tokens), np.asarray(found.counts)
    return [tuple(row[:count].tolist()) for row, count in zip(tokens, counts, strict=True)]


# The first example compiles.
@settings(deadline=None)
@given(
    texts=st.tuples(TOKENS, TOKENS, TOKENS),
    most=st.tuples(*[st.integers(0, LONGEST)] * SLOTS),
    lengths=st.sampled_from([(1, 1), (1, 3), (2, 3), (3, 3), (2, 5)]),
    behind=st.integers(0, 3),
)
def test_drafts_are_the_hosts(
    texts: tuple[list[int], ...], most: tuple[int, ...], lengths: tuple[int, int], behind: int
) -> None:
    """Each slot for itself, and whatever lies behind its tokens."""
    min_n, max_n = lengths
    table = np.full((SLOTS, CONTEXT), behind, np.int32)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = text
    counts = [len(text) for text in texts]
    found = drafter(min_n, max_n)(jnp.asarray(table), jnp.asarray(counts), jnp.asarray(most))

    wanted = [expected(text, k=k, min_n=min_n, max_n=max_n) for text, k in zip(texts, most, strict=True)]
    assert drafted(found) == wanted


@pytest.mark.parametrize("max_k", [1, 5])
def test_never_more_than_the_settings_allow(max_k: int) -> None:
    table = jnp.ones((SLOTS, CONTEXT), jnp.int32)
    found = drafter(2, 3, max_k)(table, jnp.full(SLOTS, 9), jnp.asarray([0, 3, LONGEST]))

    assert [len(draft) for draft in drafted(found)] == [0, min(3, max_k), max_k]
