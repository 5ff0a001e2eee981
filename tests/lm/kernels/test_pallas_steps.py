"""Which pages the Pallas attention fetches at which step: tiles of one page table share them, two at a time."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from deployments.lm.kernels.attention.steps import Tables, tables_of


def of(tables: Sequence[int], seen: Sequence[tuple[int, int]], *, block: int = 2) -> Tables:
    """For tiles with the page tables of these numbers, that see pages from and up to."""
    pages = jnp.asarray([[number, *range(10, 19)] for number in tables], jnp.int32)
    firsts, ends = (jnp.asarray(side, jnp.int32) for side in zip(*seen, strict=True))
    positions = jnp.zeros((len(tables), 4), jnp.int32)
    return tables_of(positions, pages=pages, firsts=firsts, ends=ends, block=block)


def fetched(tables: Tables) -> list[tuple[int, int] | None]:
    """From and up to, where anything is."""
    both = zip(np.asarray(tables.starts).tolist(), np.asarray(tables.stops).tolist(), strict=True)
    return [(start, stop) if stop > start else None for start, stop in both]


def test_tiles_of_a_slot_are_pairs_and_read_its_pages_once() -> None:
    tables = of([1, 1, 2, 2, 2, 3, 3, 3, 3], [(0, 5)] * 9)
    assert np.asarray(tables.follows).tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    pair, alone = [(0, 5), None], [(0, 5)]
    assert fetched(tables) == pair + pair + alone + pair + pair


def test_a_pair_fetches_what_either_sees() -> None:
    assert fetched(of([1, 1], [(1, 5), (2, 6)])) == [(1, 6), None]
    assert fetched(of([1, 1], [(2, 6), (1, 5)])) == [(1, 6), None]
    assert fetched(of([1, 1], [(0, 3), (3, 4)])) == [(0, 4), None]


def test_what_neither_sees_is_not_fetched() -> None:
    for far in ([(0, 3), (4, 6)], [(4, 6), (0, 3)]):
        assert fetched(of([1, 1], far)) == far
    # The run begins again behind the gap.
    assert fetched(of([1, 1, 1], [(0, 3), (4, 6), (4, 6)])) == [(0, 3), (4, 6), None]


def test_padding_is_in_no_pair() -> None:
    tables = of([0, 1, 0, 0, 1, 1], [(0, 0), (0, 2), (0, 0), (0, 0), (0, 2), (0, 0)])
    assert fetched(tables) == [None, (0, 2), None, None, (0, 2), None]
    assert not np.asarray(tables.follows).any()


def test_the_last_tile_and_the_first_are_no_pair() -> None:
    assert fetched(of([1, 2, 1], [(0, 2)] * 3)) == [(0, 2)] * 3


def test_ends_stay_within_the_table() -> None:
    assert fetched(of([1, 1], [(0, 12), (0, 13)])) == [(0, 10), None]


def test_buffers_take_turns_over_the_steps_that_fetch() -> None:
    """Blocks of two pages: three, none, one, two."""
    tables = of([1, 1, 2, 3], [(0, 5), (0, 6), (3, 4), (3, 5)])
    assert np.asarray(tables.turns)[[0, 2, 3]].tolist() == [0, 1, 0]
