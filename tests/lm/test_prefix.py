"""Pages by content: what is found is what was put there, whoever comes, goes or is evicted in between."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache

SIZE = 4


def cache(*, pages: int = 9, root: bytes = b"model") -> tuple[PageAllocator, PrefixCache]:
    allocator = PageAllocator(pages, page_size=SIZE)
    return allocator, PrefixCache(allocator, root=root)


def keys_of(prefix: PrefixCache, *tokens: int) -> list[bytes]:
    keys: list[bytes] = []
    prefix.extend_keys(keys, tokens=tokens, pages=len(tokens) // SIZE)
    return keys


def test_a_key_stands_for_all_tokens_up_to_its_end_and_for_the_model() -> None:
    _, prefix = cache()
    first, second = keys_of(prefix, 1, 2, 3, 4, 5, 6, 7, 8)

    assert keys_of(prefix, 1, 2, 3, 4) == [first]
    assert keys_of(prefix, 1, 2, 3, 4, 5, 6, 7, 9)[0] == first
    others = [
        keys_of(prefix, 1, 2, 3, 4, 5, 6, 7, 9)[1],
        keys_of(prefix, 0, 2, 3, 4, 5, 6, 7, 8)[1],
        keys_of(prefix, 5, 6, 7, 8)[0],
        keys_of(prefix, 1, 2, 3, 4 + 2**16)[0],
        keys_of(cache(root=b"another")[1], 1, 2, 3, 4)[0],
    ]
    assert len({first, second, *others}) == 7


def test_keys_are_made_once_and_for_whole_pages_only() -> None:
    _, prefix = cache()
    keys = keys_of(prefix, 1, 2, 3, 4)
    known = list(keys)
    prefix.extend_keys(keys, tokens=[1, 2, 3, 4, 5], pages=1)
    assert keys == known
    with pytest.raises(AssertionError, match="page 1 is not whole"):
        prefix.extend_keys(keys, tokens=[1, 2, 3, 4, 5], pages=2)


def test_the_first_page_with_a_content_is_the_one_that_counts() -> None:
    allocator, prefix = cache()
    one, two = allocator.take(2)
    (key,) = keys_of(prefix, 1, 2, 3, 4)

    assert (prefix.add(key, page=one), prefix.add(key, page=two), prefix.find(key)) == (one, one, one)
    allocator.give_back((two, one))
    assert (allocator.kept, allocator.free, allocator.in_use) == (1, 8, 0)
    prefix.check_integrity()


def test_a_kept_page_can_be_held_again_until_it_is_taken_for_something_else() -> None:
    allocator, prefix = cache(pages=3)
    (page,) = allocator.take(1)
    (key,) = keys_of(prefix, 1, 2, 3, 4)
    prefix.add(key, page=page)
    allocator.give_back((page,))

    allocator.hold((page,))
    allocator.check_integrity([(page,)])
    allocator.give_back((page,))
    taken = allocator.take(2)

    assert page in taken
    assert prefix.find(key) is None
    assert allocator.evictions == 1
    allocator.check_integrity([taken])
    prefix.check_integrity()


def test_a_page_nobody_holds_cannot_be_kept_or_given_back() -> None:
    allocator, prefix = cache()
    with pytest.raises(AssertionError, match="page 3 is kept by somebody who does not hold it"):
        prefix.add(b"key", page=3)
    with pytest.raises(AssertionError, match="page 3 is given back by somebody who does not hold it"):
        allocator.give_back((3,))


def test_clearing_forgets_everything_and_loses_nothing() -> None:
    allocator, prefix = cache()
    pages = allocator.take(3)
    for number, page in enumerate(pages):
        prefix.add(bytes([number]), page=page)
    allocator.give_back(pages[:1])
    prefix.clear()

    assert (len(prefix), allocator.kept, allocator.free) == (0, 0, 6)
    allocator.check_integrity([pages[1:]])
    allocator.give_back(pages[1:])
    allocator.check_integrity([])


def test_integrity_notices_a_page_that_is_shared_too_often_or_forgotten() -> None:
    allocator, prefix = cache()
    (page,) = allocator.take(1)
    prefix.add(b"key", page=page)
    allocator.hold((page,))
    allocator.check_integrity([(page,), (page,)])
    for owned in ([(page,)], [(page,)] * 3, []):
        with pytest.raises(AssertionError, match="lost or doubled"):
            allocator.check_integrity(owned)
    with pytest.raises(AssertionError, match="scratch page"):
        allocator.check_integrity([(page, 0), (page,)])
    allocator.give_back((page, page))
    prefix._keys.clear()
    with pytest.raises(AssertionError, match="keys and pages disagree"):
        prefix.check_integrity()
    prefix._pages.clear()
    with pytest.raises(AssertionError, match="1 pages are kept, but only 0 can be found"):
        prefix.check_integrity()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), pages=st.integers(3, 14))
def test_what_is_found_is_what_was_put_there(seed: int, pages: int) -> None:
    """Sequences over two tokens come and go; a dictionary of contents knows what each page really holds."""
    random = Random(seed)
    allocator, prefix = cache(pages=pages)
    content: dict[int, tuple[int, ...]] = {}
    owned: list[tuple[int, ...]] = []
    for _ in range(60):
        if owned and random.random() < 0.5:
            allocator.give_back(reversed(owned.pop(random.randrange(len(owned)))))
        else:
            tokens = tuple(random.randrange(2) for _ in range(SIZE * random.randint(1, 3)))
            taken = _enter(tokens, allocator=allocator, prefix=prefix, content=content)
            owned += [taken] if taken else []
        allocator.check_integrity(owned)
        prefix.check_integrity()
        assert allocator.free + allocator.in_use == pages - 1


def _enter(
    tokens: tuple[int, ...], *, allocator: PageAllocator, prefix: PrefixCache, content: dict[int, tuple[int, ...]]
) -> tuple[int, ...]:
    keys = keys_of(prefix, *tokens)
    found: list[int] = []
    for number, key in enumerate(keys):
        page = prefix.find(key)
        if page is None:
            # Leaves go first: where a page is gone, all that could only be found through it are gone as well.
            assert all(prefix.find(later) is None for later in keys[number:])
            break
        assert content[page] == tokens[: SIZE * (number + 1)]
        found.append(page)
    allocator.hold(found)
    if len(keys) - len(found) > allocator.free:
        allocator.give_back(reversed(found))
        return ()
    pages = (*found, *allocator.take(len(keys) - len(found)))
    for number in range(len(found), len(keys)):
        content[pages[number]] = tokens[: SIZE * (number + 1)]
        assert prefix.add(keys[number], page=pages[number]) == pages[number]
    return pages


def test_what_is_dropped_is_free_once_nobody_holds_it() -> None:
    allocator, prefix = cache()
    held, idle = allocator.take(2)
    first, second = keys_of(prefix, 1, 2, 3, 4, 5, 6, 7, 8)
    prefix.add(first, page=held)
    prefix.add(second, page=idle)
    allocator.give_back((idle,))
    for key in (first, second, b"never known"):
        prefix.drop(key)

    assert (prefix.find(first), prefix.find(second), len(prefix)) == (None, None, 0)
    assert (allocator.kept, allocator.is_held(held), allocator.is_held(idle)) == (0, True, False)
    allocator.give_back((held,))
    assert (allocator.kept, allocator.free) == (0, 8)
    allocator.check_integrity([])
    prefix.check_integrity()


def test_who_depends_on_a_page_is_told_when_it_goes() -> None:
    allocator, prefix = cache(pages=3)
    told: list[bytes] = []
    prefix.when_forgotten(told.append)
    keys = keys_of(prefix, 1, 2, 3, 4, 5, 6, 7, 8)
    pages = allocator.take(2)
    for key, page in zip(keys, pages, strict=True):
        prefix.add(key, page=page)
    allocator.give_back(reversed(pages))
    allocator.take(1)
    assert told == keys[1:]
    allocator.take(1)
    assert told == keys[::-1]
