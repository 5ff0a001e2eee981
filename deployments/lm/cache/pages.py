"""The paged cache: one array per layer, `[pages, 2, kv_heads, page_size, head_dim]`, keys at 0 and values at 1.

Heads come before positions so that a tile's product reads a page as it lies: gathering position-major pages costs
1.3 to 1.5 times as much on CPU (docs/adr/0005). Page 0 is the scratch page: padding rows write there and nobody
reads it.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from deployments.messages.errors import ConfigError, OutriderError

SCRATCH_PAGE = 0

type Cache = tuple[Float[Array, "pages 2 kv_heads page_size head_dim"], ...]


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """How large the cache is.

    Attributes:
        pages: with the scratch page.
        page_size: positions per page.
    """

    layers: int
    pages: int
    page_size: int
    kv_heads: int
    head_dim: int

    def nbytes(self, dtype: jnp.dtype) -> int:
        """Bytes on the device."""
        return self.layers * self.pages * 2 * self.kv_heads * self.page_size * self.head_dim * dtype.itemsize

    def zeros(self, dtype: jnp.dtype) -> Cache:
        """A fresh cache. Zeros, not garbage: a masked value is multiplied by zero, and must be finite."""
        shape = (self.pages, 2, self.kv_heads, self.page_size, self.head_dim)
        return tuple(jnp.zeros(shape, dtype) for _ in range(self.layers))


class OutOfPages(OutriderError):
    """Not enough free pages; whoever asked waits."""


class PageAllocator:
    """Hands out page numbers. Host only; not thread-safe."""

    def __init__(self, pages: int, *, page_size: int) -> None:
        if pages < 2:
            raise ConfigError(f"a cache of {pages} pages holds nothing; raise `context` or `slots`")
        self.page_size = page_size
        self._pages = pages
        self._free = list(range(pages - 1, SCRATCH_PAGE, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def in_use(self) -> int:
        return self._pages - 1 - len(self._free)

    def pages_for(self, tokens: int, /) -> int:
        """How many pages `tokens` positions take."""
        return -(-tokens // self.page_size)

    def take(self, count: int, /) -> tuple[int, ...]:
        """`count` pages, or `OutOfPages` and nothing taken."""
        if count > len(self._free):
            raise OutOfPages(f"{count} pages asked, {len(self._free)} free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return tuple(reversed(taken))

    def give_back(self, pages: tuple[int, ...], /) -> None:
        """Frees pages that `take` returned."""
        self._free.extend(reversed(pages))

    def check_integrity(self, owned: list[tuple[int, ...]], /) -> None:
        """Raises `AssertionError` unless `owned` and the free pages are exactly all pages, each once."""
        seen = sorted([page for pages in owned for page in pages] + self._free)
        if seen != list(range(1, self._pages)):
            raise AssertionError(f"pages lost or doubled: {len(seen)} accounted of {self._pages - 1}")
