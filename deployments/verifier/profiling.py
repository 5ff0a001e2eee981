"""Records what the device and its host do for a while, on request. Knows no windows.

A trace is what `jax.profiler` writes (XPlane protobuf and a Chrome trace), in one archive: XProf and Perfetto read it.
"""

import asyncio
import io
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import jax

from deployments.messages.errors import Unavailable


class Profiler:
    """Takes one trace at a time: the device has one profiler."""

    def __init__(self) -> None:
        self._taking: asyncio.Task[bytes] | None = None

    async def trace(self, *, seconds: float) -> bytes:
        """The next `seconds` seconds of this process and its device, as a gzipped tar archive.

        Whoever stops waiting cuts it short; the profiler is always stopped before another trace may begin.

        Raises:
            Unavailable: another trace is being taken.
        """
        if self._taking is not None and not self._taking.done():
            raise Unavailable("A trace is being taken; ask again when it has ended.")
        is_unwanted = asyncio.Event()
        self._taking = asyncio.create_task(_taken(seconds=seconds, is_unwanted=is_unwanted))
        try:
            return await asyncio.shield(self._taking)
        except asyncio.CancelledError:
            is_unwanted.set()
            raise


async def _taken(*, seconds: float, is_unwanted: asyncio.Event) -> bytes:
    with tempfile.TemporaryDirectory(prefix="outrider-trace-") as folder:
        await asyncio.to_thread(jax.profiler.start_trace, folder)
        with suppress(TimeoutError):
            await asyncio.wait_for(is_unwanted.wait(), timeout=seconds)
        # It gathers what was recorded, for longer than a stream should wait.
        await asyncio.to_thread(jax.profiler.stop_trace)
        return b"" if is_unwanted.is_set() else await asyncio.to_thread(_packed, Path(folder))


def _packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as packed:
        packed.add(folder, arcname="trace")
    return archive.getvalue()
