"""Attention to the paged cache: `native.cc` for processors; `attend` is its Python side."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float32, Int32

from deployments.lm.kernels.native import ATTEND

_VECTOR = 16


def serves(*, head_dim: int, page_size: int) -> bool:
    """Whether the kernel can take heads of this width on pages of this size."""
    return head_dim % _VECTOR == 0 and page_size % _VECTOR == 0


def attend(
    queries: Float32[Array, "rows heads head_dim"],
    *,
    cache: BFloat16[Array, "pages 2 kv_heads page_size head_dim"],
    rows: Int32[Array, "tiles lanes"],
    positions: Int32[Array, "tiles lanes"],
    pages: Int32[Array, "tiles slot_pages"],
) -> Float32[Array, "rows width"]:
    """As `lm.attention.attend`; rows in no tile come out zero."""
    result = jax.ShapeDtypeStruct((queries.shape[0], queries.shape[1] * queries.shape[2]), jnp.float32)
    seen: Array = jax.ffi.ffi_call(ATTEND, result)(queries, cache, rows, positions, pages)
    return seen
