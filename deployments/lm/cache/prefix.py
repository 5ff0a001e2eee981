"""Pages found by their content: whole pages of keys and values that any sequence with the same beginning may read.

A page's key is a hash over the key of the page before it and the page's own token ids; the first page's predecessor is
the model's fingerprint. Equal keys mean equal tokens from the first position on, and so, since every row's bits depend
on its prefix alone, equal content bit for bit. The hash is a cryptographic one: a client that could make two prompts
collide would read another's. Knows tokens and pages, no requests.

Source of the idea: block hashes as in vLLM (Kwon et al., 2023); compare RadixAttention (Zheng et al., 2024).
"""

import hashlib
from collections.abc import Callable, KeysView, Sequence

import numpy as np

from deployments.lm.cache.pages import PageAllocator


class PrefixCache:
    """Which page holds which content. Host only; not thread-safe.

    Args:
        root: what identifies the network, its precision and the page size.
    """

    def __init__(self, allocator: PageAllocator, *, root: bytes) -> None:
        self._allocator = allocator
        self._root = hashlib.sha256(root).digest()
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._on_forget: Callable[[bytes], None] = lambda key: None
        allocator.when_evicted(self._forget)

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def keys(self) -> KeysView[bytes]:
        """Of all that can be found."""
        return self._pages.keys()

    def extend_keys(self, keys: list[bytes], /, *, tokens: Sequence[int], pages: int) -> None:
        """Makes `keys`, which holds those of the first pages of `tokens`, at least `pages` long."""
        size = self._allocator.page_size
        for page in range(len(keys), pages):
            parent = keys[-1] if keys else self._root
            content = np.asarray(tokens[page * size : (page + 1) * size], "<i4")
            if len(content) < size:
                raise AssertionError(f"page {page} is not whole, so it has no key")
            keys.append(hashlib.sha256(parent + content.tobytes()).digest())

    def find(self, key: bytes, /) -> int | None:
        """The page with this content, held or kept."""
        return self._pages.get(key)

    def add(self, key: bytes, /, *, page: int) -> int:
        """Makes a held page known under its key, unless another one is; returns the one that is."""
        known = self._pages.setdefault(key, page)
        if known == page:
            self._keys[page] = key
            self._allocator.keep(page)
        return known

    def when_forgotten(self, tell: Callable[[bytes], None], /) -> None:
        """Calls `tell` with every key whose page is lost to something else; not when everything is forgotten."""
        self._on_forget = tell

    def drop(self, key: bytes, /) -> None:
        """Makes a page unknown, if there is one under this key; whoever holds it keeps it."""
        page = self._pages.pop(key, None)
        if page is not None:
            del self._keys[page]
            self._allocator.forget(page)

    def clear(self) -> None:
        """Forgets everything; for a device that lost its memory."""
        self._pages.clear()
        self._keys.clear()
        self._allocator.forget_all()

    def check_integrity(self) -> None:
        """Raises `AssertionError` unless keys and pages are each other's, and there are at least as many as kept."""
        if {key: page for page, key in self._keys.items()} != self._pages:
            raise AssertionError("prefix keys and pages disagree")
        if len(self._pages) < self._allocator.kept:
            raise AssertionError(f"{self._allocator.kept} pages are kept, but only {len(self._pages)} can be found")

    def _forget(self, page: int) -> None:
        key = self._keys.pop(page)
        del self._pages[key]
        self._on_forget(key)
