"""The page allocator: every page has one owner, whatever is taken and given back; and the size of a cache."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.lm.cache.layout import CacheShape, KeysAndValues, Recurrent
from deployments.lm.cache.pages import SCRATCH_PAGE, OutOfPages, PageAllocator
from deployments.messages.errors import ConfigError


def test_no_page_is_lost_or_given_twice() -> None:
    @given(pages=st.integers(2, 40), moves=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
    def run(pages: int, moves: list[tuple[bool, int]]) -> None:
        allocator = PageAllocator(pages, page_size=16)
        owned: list[tuple[int, ...]] = []
        for takes, number in moves:
            free = allocator.free
            if takes and number > free:
                with pytest.raises(OutOfPages):
                    allocator.take(number)
                assert allocator.free == free
            elif takes:
                taken = allocator.take(number)
                assert len(taken) == number
                assert SCRATCH_PAGE not in taken
                owned.append(taken)
            elif owned:
                allocator.give_back(owned.pop(number % len(owned)))
            allocator.check_integrity(owned)
            assert allocator.in_use == sum(map(len, owned))
            assert allocator.free + allocator.in_use == pages - 1

    run()


def test_integrity_notices_a_lost_and_a_doubled_page() -> None:
    allocator = PageAllocator(5, page_size=16)
    taken = allocator.take(2)

    allocator.check_integrity([taken])
    with pytest.raises(AssertionError, match="lost or doubled"):
        allocator.check_integrity([])
    with pytest.raises(AssertionError, match="lost or doubled"):
        allocator.check_integrity([taken, taken])
    allocator.give_back(taken)
    with pytest.raises(AssertionError, match="by somebody who does not hold it"):
        allocator.give_back(taken)
    with pytest.raises(AssertionError, match="lost or doubled"):
        allocator.check_integrity([(1,)])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_positions_fill_pages(tokens: int, pages: int) -> None:
    assert PageAllocator(8, page_size=16).pages_for(tokens) == pages


def test_a_cache_of_the_scratch_page_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="raise `context`, `slots` or `cache_pages`"):
        PageAllocator(1, page_size=16)


def test_a_cache_is_as_large_as_it_says() -> None:
    shape = CacheShape(layout=(KeysAndValues(kv_heads=2, head_dim=8),) * 3, pages=4, page_size=16)
    cache = shape.zeros(jnp.dtype(jnp.bfloat16))

    assert sum(layer.nbytes for layer in cache) == shape.nbytes(jnp.dtype(jnp.bfloat16))
    assert [layer.shape for layer in cache] == [(4, 2, 2, 16, 8)] * 3
    assert not any(bool(layer.any()) for layer in cache)


def test_states_are_f32_and_counted_beside_pages() -> None:
    recurrent = Recurrent(heads=4, key_dim=8, value_dim=16, channels=96, taps=4)
    layout = (recurrent, KeysAndValues(kv_heads=2, head_dim=8), recurrent)
    shape = CacheShape(layout=layout, pages=4, page_size=16, states=5, pending=7)
    dtype = jnp.dtype(jnp.bfloat16)
    first, pages, last = shape.zeros(dtype)

    assert [array.shape for array in first] == [(5, 4, 8, 16), (5, 3, 96), (7, 96), (7, 2, 4)]
    assert {array.dtype for array in (*first, *last)} == {jnp.dtype(jnp.float32)}
    assert sum(array.nbytes for array in (*first, *last)) == shape.state_nbytes
    assert pages.nbytes == 4 * shape.page_nbytes(dtype)
    assert shape.nbytes(dtype) == pages.nbytes + shape.state_nbytes
