"""Traces of this process: real ones, with what ran in them; one at a time."""

import asyncio
import gzip
import io
import json
import tarfile

import jax
import jax.numpy as jnp
import pytest

from deployments.messages.errors import Unavailable
from deployments.verifier.profiling import Profiler


async def test_a_trace_holds_what_ran_meanwhile() -> None:
    @jax.jit
    def remembered_product(x: jax.Array) -> jax.Array:
        return x @ x

    profiler = Profiler()
    taking = asyncio.create_task(profiler.trace(seconds=0.3))
    while not taking.done():
        remembered_product(jnp.ones((64, 64))).block_until_ready()
        if not taking.done():
            await asyncio.sleep(0.01)
    with tarfile.open(fileobj=io.BytesIO(await taking), mode="r:gz") as archive:
        names = archive.getnames()
        (told,) = [name for name in names if name.endswith(".trace.json.gz")]
        events = json.loads(gzip.decompress(archive.extractfile(told).read()))["traceEvents"]  # type: ignore[union-attr]
    assert any(name.endswith(".xplane.pb") for name in names)
    assert any("remembered_product" in event.get("name", "") for event in events)


async def test_a_second_one_is_refused_and_a_third_is_not() -> None:
    profiler = Profiler()
    first = asyncio.create_task(profiler.trace(seconds=0.2))
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match="A trace is being taken"):
        await profiler.trace(seconds=0.1)
    assert await first
    assert await profiler.trace(seconds=0.05)


@pytest.mark.parametrize("after_s", [0.0, *(pytest.param(after, marks=pytest.mark.slow) for after in (0.001, 0.3))])
async def test_one_that_is_abandoned_is_ended(after_s: float) -> None:
    """At once, while the profiler starts, or in the middle."""
    profiler = Profiler()
    abandoned = asyncio.create_task(profiler.trace(seconds=30))
    await asyncio.sleep(after_s)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    async with asyncio.timeout(30):
        while True:
            try:
                assert await profiler.trace(seconds=0.05)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return
