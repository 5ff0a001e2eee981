"""The engine's thread and its bridge to an event loop: requests go in, chunks come out, neither side waits.

The thread sleeps while there is nothing to do. One call into the loop per window carries all its chunks.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from deployments.messages.errors import OutriderError, QueueFull, Unavailable
from deployments.messages.generation import GenerateRequest, TokenChunk
from deployments.messages.metrics import Metrics
from deployments.verifier.delivery import Delivery
from deployments.verifier.engine import Engine
from deployments.verifier.pacing import Pacer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Submit:
    request: GenerateRequest


@dataclass(frozen=True, kw_only=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, kw_only=True)
class _Stop:
    pass


type _Command = _Submit | _Cancel | _Stop
type _Stream = asyncio.Queue[TokenChunk | OutriderError]


class EngineRunner:
    """Runs one engine in a thread for the event loop that called `start`.

    Args:
        most_streams: how many replies may be open at once, waiting ones included.
        pacer: how often a stream is sent something.
    """

    def __init__(self, engine: Engine, *, most_streams: int, metrics: Metrics, pacer: Pacer) -> None:
        self._engine = engine
        self._most_streams = most_streams
        self._metrics = metrics
        self._pacer = pacer
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_ended = False

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread; call it on the event loop that will read the streams."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the window in flight; open streams end with `Unavailable`."""
        self._commands.put(_Stop())
        if self.is_running:
            self._thread.join()

    async def generate(self, request: GenerateRequest, /) -> AsyncGenerator[TokenChunk]:
        """Streams a reply; closing the generator cancels it.

        Raises:
            QueueFull: too many replies are open.
            InvalidRequest: the engine refused it.
            Unavailable: the engine failed or stopped.
        """
        if len(self._streams) >= self._most_streams:
            raise QueueFull(f"all slots are busy and {len(self._streams)} replies are open; try again in a moment")
        if request.request_id in self._streams:
            raise Unavailable(f"request id {request.request_id} is in use; send the request again")
        if self._has_ended or not self.is_running:
            raise _stopped()
        stream: _Stream = asyncio.Queue()
        self._streams[request.request_id] = stream
        self._metrics.set("open_streams", value=len(self._streams))
        self._commands.put(_Submit(request=request))
        finished = False
        try:
            while not finished:
                item = await stream.get()
                finished = isinstance(item, OutriderError) or item.finish_reason is not None
                if isinstance(item, OutriderError):
                    raise item
                yield item
        finally:
            del self._streams[request.request_id]
            self._metrics.set("open_streams", value=len(self._streams))
            if not finished:
                self._commands.put(_Cancel(request_id=request.request_id))

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._hand_over(self._pacer.release(self._step(), now=time.monotonic()))
        finally:
            try:
                self._engine.fail_all(_stopped())
            finally:
                # Whatever a dead device raises, nobody is left waiting.
                self._call(self._end_streams)

    def _take_commands(self) -> bool:
        """Carries out what has been asked; sleeps while the engine is idle. Says whether to go on."""
        while True:
            try:
                command = self._commands.get(block=self._engine.is_idle)
            except queue.Empty:
                return True
            match command:
                case _Submit(request=request):
                    self._submit(request)
                case _Cancel(request_id=request_id):
                    self._engine.cancel(request_id)
                    self._pacer.forget(request_id)
                case _Stop():
                    return False

    def _submit(self, request: GenerateRequest) -> None:
        try:
            self._engine.submit(request)
        except OutriderError as error:
            self._hand_over([Delivery(request_id=request.request_id, error=error)])

    def _step(self) -> Sequence[Delivery]:
        try:
            return self._engine.step()
        except Exception as error:
            _log.exception("a window failed; its requests end with an error and the engine goes on")
            self._metrics.add("windows_failed")
            return self._engine.fail_all(
                Unavailable(f"the verifier could not run a window ({type(error).__name__}); send the request again")
            )

    def _hand_over(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._call(self._distribute, deliveries)

    def _call[*Arguments](self, function: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _end_streams(self) -> None:
        """Ends every stream, also those whose request the thread never saw."""
        self._has_ended = True
        for stream in self._streams.values():
            stream.put_nowait(_stopped())

    def _distribute(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            stream = self._streams.get(delivery.request_id)
            item = delivery.chunk if delivery.error is None else delivery.error
            if stream is not None and item is not None:
                stream.put_nowait(item)


def _stopped() -> Unavailable:
    return Unavailable("the verifier has stopped; send the request again")
