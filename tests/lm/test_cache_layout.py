"""How keys and values lie in pages: apart, or side by side where a TPU's vectors would be half empty."""

import jax.numpy as jnp
import pytest

from deployments.lm.cache.layout import CacheShape, KeysAndValues


@pytest.mark.parametrize(
    ("head_dim", "is_abreast", "page"),
    [
        (64, False, (2, 3, 16, 64)),
        (64, True, (1, 3, 16, 128)),
        (128, True, (2, 3, 16, 128)),
        (32, True, (2, 3, 16, 32)),
    ],
)
def test_pages(head_dim: int, is_abreast: bool, page: tuple[int, ...]) -> None:
    layout = (KeysAndValues(kv_heads=3, head_dim=head_dim),)
    shape = CacheShape(layout=layout, pages=5, page_size=16, is_abreast=is_abreast)
    (entry,) = shape.zeros(jnp.dtype(jnp.bfloat16))
    assert entry.shape == (5, *page)
    assert entry.nbytes == shape.nbytes(jnp.dtype(jnp.bfloat16)) == 5 * shape.page_nbytes(jnp.dtype(jnp.bfloat16))
