"""Attention to the paged cache: `native.cc` for processors; `attend` is its Python side. `pallas` is for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float, Float32, Int32

from deployments.lm.kernels.native import ATTEND

_VECTOR = 16


def serves(cache: Float[Array, "pages halves kv_heads page_size depth"], /) -> bool:
    """Whether the kernel can read this cache: bf16, keys apart from values, heads and pages of whole vectors."""
    is_whole = cache.shape[4] % _VECTOR == 0 and cache.shape[3] % _VECTOR == 0
    return is_whole and cache.shape[1] == 2 and cache.dtype == jnp.bfloat16


def attend(
    queries: Float32[Array, "rows heads head_dim"],
    *,
    cache: BFloat16[Array, "pages 2 kv_heads page_size head_dim"],
    rows: Int32[Array, "tiles lanes"],
    positions: Int32[Array, "tiles lanes"],
    pages: Int32[Array, "tiles slot_pages"],
    scale: float | None = None,
    window: int | None = None,
) -> Float32[Array, "rows width"]:
    """As `lm.attention.attend`; rows in no tile come out zero."""
    _, heads, width = queries.shape
    result = jax.ShapeDtypeStruct((queries.shape[0], heads * width), jnp.float32)
    seen: Array = jax.ffi.ffi_call(ATTEND, result)(
        queries,
        cache,
        rows,
        positions,
        pages,
        scale=np.float32(1) / np.sqrt(np.float32(width)) if scale is None else np.float32(scale),
        # A window as long as the page table hides nothing.
        window=np.int64(pages.shape[1] * cache.shape[3] if window is None else window),
    )
    return seen
