"""The Pallas attention, compiled by libtpu for chips that are not here, behind the writing of a donated cache."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, SingleDeviceSharding

from deployments.lm.attention import TILE_ROWS, Tiles, attend, write
from deployments.lm.kernels.attention import pallas
from deployments.lm.kernels.choice import Kernels
from deployments.lm.topologies import absent_devices

CHIPS = ("v5e:2x2x1", "v5p:2x2x1", "v6e:1x1x1")
ROWS, TILES, SLOT_PAGES = 32, 16, 64
# More than the fast memory of any chip, so that a copy of a cache is a temporary.
CACHE_BYTES = 256 << 20
# What the kernel may take of a core's fast memory unless it asks for more, with room for what it computes.
SCOPED_VMEM = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layer; heads of 64 lie side by side with their values."""

    kv_heads: int
    group: int
    width: int
    page_size: int = 64
    is_f32: bool = False
    window: int | None = None
    softcap: float | None = None

    def __str__(self) -> str:
        kind = "f32" if self.is_f32 else "bf16"
        return f"{self.kv_heads * self.group}x{self.kv_heads}x{self.width}-pages-of-{self.page_size}-{kind}"

    @property
    def cache_shape(self) -> tuple[int, ...]:
        page = (1, self.kv_heads, self.page_size, 128) if self.width == 64 else self._apart
        return (CACHE_BYTES // (math.prod(page) * self.dtype.itemsize), *page)

    @property
    def dtype(self) -> np.dtype[Any]:
        return jnp.dtype(jnp.float32 if self.is_f32 else jnp.bfloat16)

    @property
    def _apart(self) -> tuple[int, ...]:
        return (2, self.kv_heads, self.page_size, self.width)


LLAMA_8B = Case(kv_heads=8, group=4, width=128)
SMOLLM2 = Case(kv_heads=3, group=3, width=64)
OTHERS = (
    Case(kv_heads=8, group=4, width=64),
    Case(kv_heads=4, group=6, width=256, window=512, softcap=30.0),
    Case(kv_heads=1, group=8, width=128, page_size=16),
    Case(kv_heads=2, group=7, width=128, page_size=128),
    Case(kv_heads=8, group=8, width=256, page_size=128, is_f32=True),
    Case(kv_heads=2, group=5, width=256, page_size=32, window=100),
)


def compiled(case: Case, *, chip: str) -> jax.stages.Compiled:
    """Keys and values of a window's rows written, and what the rows see."""
    device = absent_devices(chip)[0]
    here = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))

    def layer(
        cache: jax.Array, queries: jax.Array, keys: jax.Array, values: jax.Array, places: jax.Array, tiles: Tiles
    ) -> tuple[jax.Array, jax.Array]:
        cache = write(cache, keys=keys, values=values, pages=places[0], offsets=places[1])
        seen = attend(
            queries,
            cache=cache,
            tiles=tiles,
            kernels=Kernels.PALLAS,
            window=case.window,
            softcap=case.softcap,
        )
        return seen, cache

    whole = ((TILES, TILE_ROWS), (TILES, TILE_ROWS), (TILES, SLOT_PAGES), (ROWS,))
    tiles: Any = Tiles._make(here(table, jnp.int32) for table in whole)
    key = here((ROWS, case.kv_heads, case.width), jnp.float32)
    with jax.sharding.use_abstract_mesh(Mesh(np.array([device]), ("chips",)).abstract_mesh):
        lowered = jax.jit(layer, donate_argnums=0).lower(
            here(case.cache_shape, case.dtype),
            here((ROWS, case.kv_heads * case.group, case.width), jnp.float32),
            key,
            key,
            here((2, ROWS), jnp.int32),
            tiles,
        )
    return lowered.compile()


def check(case: Case, *, chip: str) -> None:
    program = compiled(case, chip=chip)
    assert "tpu_custom_call" in (program.as_text() or "")
    memory = program.memory_analysis()
    assert memory is not None
    # The cache is written in place, and read as it lies there.
    assert memory.alias_size_in_bytes == math.prod(case.cache_shape) * case.dtype.itemsize
    assert memory.temp_size_in_bytes < CACHE_BYTES // 10
    cache = jax.ShapeDtypeStruct(case.cache_shape, case.dtype)
    assert pallas.vmem_bytes(cache=cache, queries=TILE_ROWS * case.group) < SCOPED_VMEM


@pytest.mark.parametrize("chip", [*CHIPS, pytest.param("tpu7x:2x2x1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [LLAMA_8B, SMOLLM2], ids=str)
def test_it_compiles_and_copies_no_cache(case: Case, chip: str) -> None:
    check(case, chip=chip)


@pytest.mark.slow
@pytest.mark.parametrize("chip", [*CHIPS, "tpu7x:2x2x1"])
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_other_layers_compile_and_copy_no_cache(case: Case, chip: str) -> None:
    check(case, chip=chip)
