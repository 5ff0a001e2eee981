"""Ray's errors in our words, and streams that are cancelled when they are left. The handles are stand-ins."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from deployments.ingress.clients import DrafterClient, TokenizerClient, VerifierClient, translated
from deployments.messages.errors import ContextTooLong, OutriderError, QueueFull, Unavailable
from deployments.messages.generation import ChatTurn, GenerateRequest, TokenChunk

_STREAMING = {"stream": True, "_by_reference": False, "response_serialization": "pickle"}
_REQUEST = GenerateRequest(request_id="r", prompt_ids=(1,), max_tokens=4)


class _Stream:
    """What a streaming call returns."""

    def __init__(self, steps: list[Any], /) -> None:
        self._steps = steps
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[Any]:
        for step in self._steps:
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            yield step


class _Replica:
    """One replica's answer: an exception is raised, an event waited for."""

    def __init__(self, answer: Any, /) -> None:
        self._answer = answer

    async def get_async(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        if isinstance(self._answer, asyncio.Event):
            await self._answer.wait()
        return self._answer


class _Broadcast:
    def __init__(self, answers: list[Any], /) -> None:
        self._answers = answers

    async def _fetch_replica_results_async(self) -> list[_Replica]:
        return [_Replica(answer) for answer in self._answers]


class _Handle:
    """Keeps what it was asked with which options."""

    def __init__(self, *, stream: _Stream | None = None, answers: list[Any] | None = None) -> None:
        self.stream = stream
        self.answers = answers or []
        self.calls: list[tuple[dict[str, Any], tuple[Any, ...]]] = []

    def options(self, **options: Any) -> "_Bound":
        return _Bound(handle=self, options=options)

    def broadcast(self, method: str) -> _Broadcast:
        self.calls.append(({"broadcast": method}, ()))
        return _Broadcast(self.answers)


class _Bound:
    def __init__(self, *, handle: _Handle, options: dict[str, Any]) -> None:
        self._handle = handle
        self._options = options

    def remote(self, *arguments: Any) -> Any:
        self._handle.calls.append((self._options, arguments))
        return self._handle.stream if self._options.get("stream") else asyncio.sleep(0, "answer")


def _as_handle(handle: _Handle, /) -> DeploymentHandle[Any]:
    return cast("DeploymentHandle[Any]", handle)


def _task_error(cause: Exception, /) -> Exception:
    error = RayTaskError(function_name="generate", traceback_str="Traceback: somewhere", cause=cause)
    return cast(Exception, error.as_instanceof_cause())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (_task_error(ContextTooLong("Too long.", "prompt")), ContextTooLong),
        (_task_error(QueueFull("Full.", 9)), QueueFull),
        (_task_error(ActorDiedError()), Unavailable),
        (ActorDiedError(), Unavailable),
        (BackPressureError(5, 5), QueueFull),
        (RequestCancelledError("r"), Unavailable),
        (asyncio.CancelledError(), Unavailable),
    ],
)
async def test_errors_are_translated(raised: BaseException, expected: type[OutriderError]) -> None:
    with pytest.raises(OutriderError) as caught, translated("verifier"):
        raise raised
    assert type(caught.value) is expected
    assert str(caught.value).endswith(".")


async def test_an_error_keeps_its_arguments() -> None:
    with pytest.raises(QueueFull) as caught, translated("verifier"):
        raise _task_error(QueueFull("Full.", 9))
    assert caught.value.retry_after_s == 9


async def test_an_unknown_error_is_not_disguised() -> None:
    with pytest.raises(RayTaskError), translated("verifier"):
        raise _task_error(ZeroDivisionError())


async def test_our_own_cancellation_stays_one() -> None:
    async def wait() -> None:
        with translated("verifier"):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_read_to_its_end_is_not_cancelled() -> None:
    stream = _Stream([TokenChunk(token_ids=(1,)), TokenChunk(token_ids=(2,))])
    handle = _Handle(stream=stream)
    client = VerifierClient(_as_handle(handle))
    assert [chunk.token_ids async for chunk in client.generate(_REQUEST)] == [(1,), (2,)]
    assert not stream.cancelled
    assert handle.calls == [({**_STREAMING, "method_name": "generate"}, (_REQUEST,))]


async def test_a_stream_that_is_left_is_cancelled() -> None:
    stream = _Stream([TokenChunk(token_ids=(1,)), TokenChunk(token_ids=(2,))])
    chunks = VerifierClient(_as_handle(_Handle(stream=stream))).generate(_REQUEST)
    await anext(chunks)
    await chunks.aclose()
    assert stream.cancelled


async def test_a_stream_that_breaks_is_unavailable() -> None:
    stream = _Stream([TokenChunk(token_ids=(1,)), ActorDiedError()])
    with pytest.raises(Unavailable):
        _ = [chunk async for chunk in VerifierClient(_as_handle(_Handle(stream=stream))).generate(_REQUEST)]


async def test_long_texts_do_not_take_the_capped_transport() -> None:
    handle = _Handle()
    client = TokenizerClient(_as_handle(handle))
    await client.encode_text("short")
    await client.encode_text("x" * 300_000)
    await client.encode_chat((ChatTurn(role="user", content="short"),))
    await client.encode_chat((ChatTurn(role="user", content="x" * 300_000),))
    assert [options.get("_by_reference", True) for options, _ in handle.calls] == [False, True, False, True]


async def test_replicas_that_fail_are_left_out_while_one_answers() -> None:
    handle = _Handle(answers=[RuntimeError(), "page"])
    assert await DrafterClient(_as_handle(handle)).metrics() == ["page"]
    handle.answers = [RuntimeError()]
    with pytest.raises(Unavailable):
        await DrafterClient(_as_handle(handle)).metrics()


async def test_a_replica_that_hangs_does_not_keep_what_the_others_say() -> None:
    hangs = asyncio.Event()
    client = DrafterClient(_as_handle(_Handle(answers=[hangs, "page", RuntimeError()])))
    async with asyncio.timeout(0.9):
        assert await client.metrics() == ["page"]
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(tasks, timeout=1.0) if tasks else None
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_replica_that_is_alone_may_take_its_time() -> None:
    slow = asyncio.Event()
    asyncio.get_running_loop().call_later(0.8, slow.set)
    client = DrafterClient(_as_handle(_Handle(answers=[RuntimeError(), slow])))
    answers: list[Any] = await client.metrics()
    assert answers == [slow]


async def test_a_client_is_told_when_no_replica_is_there_to_begin_its_reply() -> None:
    stream = _Stream([asyncio.Event()])
    client = VerifierClient(_as_handle(_Handle(stream=stream, answers=[ActorDiedError()])), patience_s=0.01)
    with pytest.raises(Unavailable):
        await anext(client.generate(_REQUEST))
    assert stream.cancelled


async def test_a_reply_that_waits_for_a_slot_may_take_its_time() -> None:
    turn = asyncio.Event()
    stream = _Stream([turn, TokenChunk(token_ids=(1,))])
    handle = _Handle(stream=stream, answers=["a card"])
    asyncio.get_running_loop().call_later(0.1, turn.set)
    client = VerifierClient(_as_handle(handle), patience_s=0.01)
    assert [chunk.token_ids async for chunk in client.generate(_REQUEST)] == [(1,)]
    assert len(handle.calls) > 2
