"""The index against a search through all tokens, and the choices that search does not explain."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.lm.drafting.ngram import NgramIndex, NgramSettings, NgramStrategy
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError
from deployments.messages.generation import SamplingSettings

TOKENS = st.lists(st.integers(0, 3), max_size=40)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=8)


def search(tokens: list[int], *, min_n: int, max_n: int, k: int) -> tuple[int, ...]:
    """The definition: longest suffix first, latest earlier place first, copying on into the copy."""
    for n in range(max_n, min_n - 1, -1):
        for place in range(len(tokens) - 1, n - 1, -1):
            if tokens[place - n : place] == tokens[len(tokens) - n :]:
                grown = list(tokens)
                for offset in range(k):
                    grown.append(grown[place + offset])
                return tuple(grown[len(tokens) :])
    return ()


@given(tokens=TOKENS, cuts=CUTS, min_n=st.integers(1, 3), extra=st.integers(0, 2), k=st.integers(0, 9))
def test_the_index_finds_what_a_full_search_finds(
    tokens: list[int], cuts: list[int], min_n: int, extra: int, k: int
) -> None:
    index = NgramIndex(min_n=min_n, max_n=min_n + extra)
    start = 0
    for cut in itertools.cycle(cuts):
        if start >= len(tokens):
            break
        index.extend(tuple(tokens[start : start + cut]))
        start += cut
        known = tokens[:start]
        assert index.continuation(k=k) == search(known, min_n=min_n, max_n=min_n + extra, k=k)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((7, 7, 7), (7, 7, 7, 7, 7)),
        ((1, 2, 1, 2), (1, 2, 1, 2, 1)),
        ((5, 1, 2, 3, 1, 2, 3), (1, 2, 3, 1, 2)),
        ((1, 2, 8, 8, 1, 2, 9, 9, 1, 2), (9, 9, 1, 2, 9)),
        ((0, 1, 2, 6, 5, 1, 2, 7, 0, 1, 2), (6, 5, 1, 2, 7)),
        ((1, 2, 3, 4), ()),
        ((1,), ()),
        ((), ()),
    ],
    ids=["one repeated", "pair repeated", "period of three", "latest place", "longest first", "new", "one", "none"],
)
def test_choices(tokens: tuple[int, ...], expected: tuple[int, ...]) -> None:
    index = NgramIndex(min_n=2, max_n=3)
    index.extend(tokens)
    assert index.continuation(k=5) == expected


def opened(request_id: str, *prompt: int) -> Open:
    return Open(request_id=request_id, prompt_ids=prompt, sampling=SamplingSettings(), choice=0, k_max=8)


def test_requests_do_not_see_each_other_and_opening_again_begins_again() -> None:
    strategy = NgramStrategy(NgramSettings(max_k=4))
    strategy.open(opened("a", 1, 2, 3))
    strategy.open(opened("b", 9, 9, 1, 2))
    strategy.commit(AcceptedPrefix(request_id="a", base_len=3, token_ids=(1, 2), accepted=0, generation=1, k=4))
    assert strategy.propose("a", k=3).token_ids == (3, 1, 2)
    assert strategy.propose("a", k=9).token_ids == (3, 1, 2, 3), "no more than max_k"
    assert strategy.propose("b", k=3).token_ids == ()
    strategy.open(opened("a", 1, 2))
    assert strategy.propose("a", k=3).token_ids == ()
    strategy.close("a")
    strategy.close("a")
    with pytest.raises(KeyError):
        strategy.propose("a", k=1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: NgramSettings(min_n=0),
        lambda: NgramSettings(min_n=4, max_n=3),
        lambda: NgramSettings(max_n=17),
        lambda: NgramSettings(max_k=0),
        lambda: NgramSettings(max_k=65),
    ],
)
def test_settings_that_cannot_work_are_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match="give"):
        build()
