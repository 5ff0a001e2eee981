"""Records what the device and its host do for a while, on request. Knows no windows.

A trace is what `jax.profiler` writes (XPlane protobuf and a Chrome trace), in one archive: XProf and Perfetto read it.
"""

import asyncio
import io
import tarfile
import tempfile
from pathlib import Path

import jax

from deployments.messages.errors import Unavailable


class Profiler:
    """Takes one trace at a time: the device has one profiler."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def trace(self, *, seconds: float) -> bytes:
        """The next `seconds` seconds of this process and its device, as a gzipped tar archive.

        Raises:
            Unavailable: another trace is being taken.
        """
        if self._one_at_a_time.locked():
            raise Unavailable("A trace is being taken; ask again when it has ended.")
        async with self._one_at_a_time:
            with tempfile.TemporaryDirectory(prefix="outrider-trace-") as folder:
                await asyncio.to_thread(jax.profiler.start_trace, folder)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    # It gathers what was recorded, for longer than a stream should wait.
                    await asyncio.to_thread(jax.profiler.stop_trace)
                return await asyncio.to_thread(_packed, Path(folder))


def _packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as packed:
        packed.add(folder, arcname="trace")
    return archive.getvalue()
