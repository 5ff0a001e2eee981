"""Who holds which page of the cache. Host only: knows page numbers, not what lies on them."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from deployments.messages.errors import ConfigError, OutriderError

SCRATCH_PAGE = 0


class OutOfPages(OutriderError):
    """Not enough free pages; whoever asked waits."""


class PageAllocator:
    """Hands out page numbers and counts who holds each. Host only; not thread-safe.

    A page is free, held by so many, or kept: held by nobody, but with content somebody may want again. Kept pages are
    taken when no free ones are left, the one given back longest ago first.
    """

    def __init__(self, pages: int, *, page_size: int) -> None:
        if pages < 2:
            raise ConfigError(f"a cache of {pages} pages holds nothing; raise `context`, `slots` or `cache_pages`")
        self.page_size = page_size
        self._holders = [0] * pages
        self._free = list(range(pages - 1, SCRATCH_PAGE, -1))
        self._known: set[int] = set()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._on_evict: Callable[[int], None] = lambda page: None
        self._evictions = 0

    @property
    def capacity(self) -> int:
        """How many pages there are for everybody together."""
        return len(self._holders) - 1

    @property
    def free(self) -> int:
        """How many pages could be taken now, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def in_use(self) -> int:
        return self.capacity - self.free

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def evictions(self) -> int:
        """How many kept pages were taken for something else so far."""
        return self._evictions

    def pages_for(self, tokens: int, /) -> int:
        """How many pages `tokens` positions take."""
        return -(-tokens // self.page_size)

    def when_evicted(self, tell: Callable[[int], None], /) -> None:
        """Calls `tell` with every page whose content is about to be lost."""
        self._on_evict = tell

    def is_held(self, page: int, /) -> bool:
        return self._holders[page] > 0

    def take(self, count: int, /) -> tuple[int, ...]:
        """`count` pages that nobody else holds, or `OutOfPages` and nothing taken."""
        if count > self.free:
            raise OutOfPages(f"{count} pages asked, {self.free} free")
        return tuple(self._take_one() for _ in range(count))

    def hold(self, pages: Iterable[int], /) -> None:
        """One more holder for each of these pages, which are held or kept."""
        for page in pages:
            if not self._holders[page]:
                del self._kept[page]
            self._holders[page] += 1

    def keep(self, page: int, /) -> None:
        """Says that the content of a held page is worth keeping when its last holder gives it back."""
        if not self._holders[page]:
            raise AssertionError(f"page {page} is kept by somebody who does not hold it")
        self._known.add(page)

    def forget(self, page: int, /) -> None:
        """Says that the content of a page is not worth keeping any more."""
        self._known.discard(page)
        if page in self._kept:
            del self._kept[page]
            self._free.append(page)

    def give_back(self, pages: Iterable[int], /) -> None:
        """One holder less for each. A sequence's pages are given back last page first: no page outlives the one
        before it, without which it could not be found."""
        for page in pages:
            if not self._holders[page]:
                raise AssertionError(f"page {page} is given back by somebody who does not hold it")
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._known:
                self._kept[page] = None
            else:
                self._free.append(page)

    def forget_all(self) -> None:
        """No page's content is worth keeping any more."""
        self._free.extend(self._kept)
        self._kept.clear()
        self._known.clear()

    def check_integrity(self, owned: Iterable[tuple[int, ...]], /) -> None:
        """Raises `AssertionError` unless every page is either free, kept, or held exactly as often as `owned` says."""
        counts = Counter(page for pages in owned for page in pages)
        idle = Counter([*self._free, *self._kept])
        for page in range(1, len(self._holders)):
            if self._holders[page] != counts[page] or idle[page] != (0 if counts[page] else 1):
                raise AssertionError(
                    f"pages lost or doubled: page {page} has {counts[page]} owners, {self._holders[page]} holders "
                    f"and is {idle[page]} times free"
                )
        if counts[SCRATCH_PAGE] or idle[SCRATCH_PAGE] or sum(idle.values()) + len(counts) != self.capacity:
            raise AssertionError("pages lost or doubled: the scratch page or one that does not exist is accounted for")
        if not self._kept.keys() <= self._known or self._known & set(self._free):
            raise AssertionError("a page with known content is free, or one without is kept")

    def _take_one(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._kept.popitem(last=False)
            self._known.discard(page)
            self._evictions += 1
            self._on_evict(page)
        self._holders[page] = 1
        return page
