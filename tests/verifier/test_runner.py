"""The engine's thread and the event loop: streams, a full queue, cancels, failures, and the end."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from deployments.messages.errors import ContextTooLong, InvalidRequest, QueueFull, Unavailable
from deployments.messages.generation import FinishReason, GenerateRequest, TokenChunk
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.pacing import Pacer
from deployments.verifier.packing import PackedWindow
from deployments.verifier.programs import Launched, WindowResult
from deployments.verifier.runner import EngineRunner
from tests.verifier.recalling import RecallingPrograms, expected, recalling_engine
from tests.verifier.serving import Tallies


class Gate:
    """Lets windows through only while it is open, so that a test can act between two of them."""

    def __init__(self, programs: RecallingPrograms) -> None:
        self._launch = programs.launch
        self._changed = threading.Condition()
        self._is_open = True
        self._passes = 0
        self._is_waited_at = False

    def launch(self, window: PackedWindow, /) -> Launched:
        return _Gated(gate=self, window=self._launch(window))

    def wait(self) -> None:
        with self._changed:
            self._is_waited_at = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_open or self._passes > 0, 10)
            self._passes = max(self._passes - 1, 0)
            self._is_waited_at = False

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def let_through(self, windows: int, /) -> None:
        """Closes it behind so many windows; before the first request, so that none can slip by."""
        with self._changed:
            self._is_open = False
            self._passes = windows

    async def closed(self) -> None:
        """Closes it, and returns once a window waits there."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._changed:
            self._is_open = False
            assert self._changed.wait_for(lambda: self._is_waited_at and self._passes == 0, 10)


class _Gated(Launched):
    """A window that is under way until the gate lets it through."""

    def __init__(self, *, gate: Gate, window: Launched) -> None:
        self._gate = gate
        self._window = window

    def result(self) -> WindowResult | None:
        self._gate.wait()
        return self._window.result()


class Served:
    """A runner at work."""

    def __init__(self, *, most_streams: int = 8) -> None:
        self.metrics = Tallies()
        self.engine, self.programs = recalling_engine(NoDrafts(), metrics=self.metrics)
        self.gate = Gate(self.programs)
        self.programs.launch = self.gate.launch  # type: ignore[method-assign]  # a gate around the real one
        self.runner = EngineRunner(
            self.engine, most_streams=most_streams, metrics=self.metrics, pacer=Pacer(interval_s=0.0)
        )

    async def collect(self, request: GenerateRequest) -> list[TokenChunk]:
        return [chunk async for chunk in self.runner.generate(request)]

    async def settled(self) -> None:
        """Returns once nothing is left to do."""
        for _ in range(5000):
            if self.runner.open_streams == 0 and self.engine.is_idle:
                break
            await asyncio.sleep(0.001)
        assert self.engine.is_idle
        assert self.engine.scheduler.pages_in_use == 0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    one = Served()
    one.runner.start()
    yield one
    one.gate.open()
    await asyncio.to_thread(one.runner.stop)
    assert not one.runner.is_running


def request(number: int = 0, *, tokens: int = 12) -> GenerateRequest:
    return GenerateRequest(request_id=f"r{number}", prompt_ids=(1, 2, 3, number % 5), max_tokens=tokens)


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_replies_are_streamed_window_by_window(served: Served) -> None:
    chunks = await served.collect(request())

    assert tokens(chunks) == expected(request()).tokens
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 12
    assert [chunk.finish_reason for chunk in chunks] == [None] * 11 + [FinishReason.LENGTH]
    await served.settled()
    assert served.metrics.gauges["open_streams"] == 0


async def test_many_replies_at_once(served: Served) -> None:
    requests = [request(number) for number in range(8)]
    replies = await asyncio.gather(*(served.collect(one) for one in requests))

    assert [tokens(reply) for reply in replies] == [expected(one).tokens for one in requests]
    await served.settled()


async def test_a_full_house_is_said_at_once(served: Served) -> None:
    served.gate.let_through(0)
    await_gate = asyncio.create_task(served.gate.closed())
    tasks = [asyncio.create_task(served.collect(request(number))) for number in range(8)]
    await await_gate
    with pytest.raises(QueueFull, match="all slots are busy and 8 replies are open; try again in a moment") as caught:
        await served.collect(request(9))
    assert caught.value.retry_after_s == 1
    served.gate.open()
    await asyncio.gather(*tasks)

    assert tokens(await served.collect(request(9))) == expected(request(9)).tokens


async def test_closing_a_stream_cancels_its_request(served: Served) -> None:
    """Within one window: the gate is closed while the stream is, so not a single one more is run for it."""
    served.gate.let_through(1)
    stream = served.runner.generate(request(tokens=50))
    assert await anext(stream)
    await served.gate.closed()
    await stream.aclose()
    before = served.programs.windows
    served.gate.open()
    await served.settled()

    assert served.programs.windows == before + 1
    assert served.metrics.counters["requests_cancelled"] == 1
    assert served.metrics.gauges["active_slots"] == 0


async def test_a_task_that_is_cancelled_leaves_nothing_behind(served: Served) -> None:
    served.gate.let_through(0)
    tasks = [asyncio.create_task(served.collect(request(number, tokens=50))) for number in range(8)]
    await served.gate.closed()
    for task in tasks[:7]:
        task.cancel()
    await asyncio.gather(*tasks[:7], return_exceptions=True)
    served.gate.open()

    assert tokens(await tasks[7]) == expected(request(7, tokens=50)).tokens
    await served.settled()
    assert served.metrics.counters["requests_cancelled"] == 7


async def test_what_the_engine_refuses_reaches_its_caller_alone(served: Served) -> None:
    good = asyncio.create_task(served.collect(request()))
    with pytest.raises(ContextTooLong, match="together 104; the context holds 64"):
        await served.collect(request(1, tokens=100))
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        await served.collect(replace(request(2), prompt_ids=()))

    assert tokens(await good) == expected(request()).tokens
    await served.settled()


async def test_a_window_that_fails_ends_its_replies_and_the_engine_goes_on(served: Served) -> None:
    served.gate.let_through(0)
    waiting = asyncio.create_task(served.gate.closed())
    tasks = [asyncio.create_task(served.collect(request(number))) for number in range(5)]
    await waiting
    served.programs.failures = [RuntimeError("lost the device")]
    served.gate.open()
    for task in tasks:
        with pytest.raises(Unavailable, match=r"could not run a window \(RuntimeError\); send the request again"):
            await task
    await served.settled()

    assert served.metrics.counters["windows_failed"] == 1
    assert tokens(await served.collect(request())) == expected(request()).tokens


async def test_a_request_id_in_use_is_refused(served: Served) -> None:
    stream = served.runner.generate(request(tokens=50))
    assert await anext(stream)
    with pytest.raises(Unavailable, match="request id r0 is in use"):
        await served.collect(request())
    await stream.aclose()
    await served.settled()


async def test_stopping_ends_every_stream_also_those_not_begun(served: Served) -> None:
    """Also one whose request lies behind the order to stop, and which the thread never saw."""
    served.gate.let_through(0)
    begun = [asyncio.create_task(served.collect(request(number, tokens=50))) for number in range(5)]
    await served.gate.closed()
    stopping = asyncio.create_task(asyncio.to_thread(served.runner.stop))
    await asyncio.sleep(0.05)
    late = asyncio.create_task(served.collect(request(6)))
    await asyncio.sleep(0)
    served.gate.open()
    await stopping
    for task in (*begun, late):
        with pytest.raises(Unavailable, match="the verifier has stopped; send the request again"):
            await asyncio.wait_for(task, 5)

    assert served.runner.open_streams == 0
    assert served.engine.is_idle
    with pytest.raises(Unavailable, match="has stopped"):
        await served.collect(request(7))


async def test_the_loop_is_free_while_a_window_runs(served: Served) -> None:
    served.gate.let_through(0)
    task = asyncio.create_task(served.collect(request()))
    await served.gate.closed()
    loop = asyncio.get_running_loop()
    began, turns = loop.time(), 0
    while loop.time() - began < 0.05:
        await asyncio.sleep(0)
        turns += 1
    served.gate.open()

    assert turns > 20
    assert tokens(await task) == expected(request()).tokens


async def test_a_runner_that_never_started_can_be_stopped_and_serves_nobody() -> None:
    one = Served()
    with pytest.raises(Unavailable, match="has stopped"):
        await one.collect(request())
    one.runner.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_device_that_is_gone_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Served()

    def gone(*_: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(one.programs, "launch", gone)
    monkeypatch.setattr(one.programs, "clear_cache", gone)
    one.runner.start()
    with pytest.raises(Unavailable, match="has stopped"):
        await asyncio.wait_for(one.collect(request()), 5)
    await asyncio.to_thread(one.runner.stop)
    assert not one.runner.is_running
