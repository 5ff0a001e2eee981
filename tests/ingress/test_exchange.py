"""Clients that leave, at every stage: the verifier's streams are closed, and nothing stays in flight."""

import asyncio
import contextlib

import httpx
import pytest
from starlette.types import Message

from deployments.ingress.errors import BodyTooLarge
from deployments.ingress.exchange import ClientGone, Exchange
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest
from tests.ingress.conftest import Serve
from tests.ingress.fakes import Step, chunks, until


def _endless(_: GenerateRequest, /) -> list[Step]:
    return [*chunks("some text")[:-1], asyncio.Event()]


@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_a_stream_frees_its_slots(serve: Serve, n: int) -> None:
    async with serve(script=_endless) as running:
        body = {**running.chat, "stream": True, "n": n}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as response:
            await anext(response.aiter_lines())
            assert running.verifier.open == n
        await running.idle()
        assert running.metrics.value("ingress_disconnects_total") == 1
        assert running.metrics.value("ingress_requests_total", route="chat", status="200") == 1


@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_before_an_answer_in_one_piece_frees_its_slots(serve: Serve, n: int) -> None:
    async with serve(script=_endless) as running:
        request = asyncio.create_task(running.post_chat(n=n))
        await until(lambda: running.verifier.open == n)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        await running.idle()
        assert running.metrics.value("ingress_disconnects_total") == 1
        assert running.metrics.value("ingress_requests_total", route="chat", status="499") == 1


async def test_a_client_that_stays_is_not_counted_as_gone(serve: Serve) -> None:
    async with serve() as running:
        for stream in (False, True):
            await running.post_chat(stream=stream)
        assert running.metrics.value("ingress_disconnects_total") == 0


async def test_a_client_that_leaves_while_sending_costs_nothing(serve: Serve) -> None:
    async with serve() as running:
        host, port = running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await until(lambda: running.metrics.value("ingress_disconnects_total") == 1)
        assert (await running.post_chat()).status_code == 200


async def test_many_clients_that_come_and_go_leave_nothing_behind(serve: Serve) -> None:
    arrived = [asyncio.Event() for _ in range(60)]

    def script(request: GenerateRequest) -> list[Step]:
        arrived[request.sampling.seed].set()
        return [*chunks("some text")[:-1], asyncio.Event()] if request.sampling.seed % 2 else list(chunks("done"))

    async with serve(script=script, settings=IngressSettings(max_in_flight=1000)) as running:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=running.url, limits=limits, timeout=60, verify=False) as http:

            async def visit(number: int) -> None:
                body = {**running.chat, "seed": number, "stream": number % 3 == 0}
                visiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
                if number % 2:
                    # Gone as soon as its request is being answered, however long that took.
                    await asyncio.wait_for(arrived[number].wait(), timeout=60)
                    visiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert (await visiting).status_code == 200

            await asyncio.gather(*(visit(number) for number in range(60)))
        await running.idle()
        assert len(running.verifier.requests) == 60
        assert running.metrics.value("ingress_disconnects_total") == 30


def _exchange(messages: list[Message], /) -> Exchange:
    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise OSError("the pipe is broken")

    return Exchange(scope={"type": "http", "headers": []}, receive=receive, send=send)


def _part(body: bytes, /, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_is_put_together() -> None:
    exchange = _exchange([_part(b"ab"), _part(b""), _part(b"c", more=False)])
    assert await exchange.body(limit=3) == b"abc"


async def test_a_long_body_is_read_to_its_end_and_refused() -> None:
    messages = [_part(b"abcd"), _part(b"efgh", more=False)]
    with pytest.raises(BodyTooLarge):
        await _exchange(messages).body(limit=3)
    assert messages == []


async def test_a_body_without_end_is_not_read_for_ever() -> None:
    with pytest.raises(BodyTooLarge):
        await _exchange([_part(b"abcd")] * 100).body(limit=3)


async def test_a_broken_pipe_is_a_client_that_left() -> None:
    with pytest.raises(ClientGone):
        await _exchange([]).respond(b"{}")


async def test_cancelling_the_call_cancels_the_work_and_waits_for_it() -> None:
    cleaned = asyncio.Event()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_: Message) -> None: ...

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    exchange = Exchange(scope={"type": "http", "headers": []}, receive=receive, send=send)
    call = asyncio.create_task(exchange.until_left(work()))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleaned.is_set()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_part_that_is_away_because_the_client_left_is_the_clients_doing(leaves: bool) -> None:
    """Serve cancels the calls of a client that left; that can be heard before the client is known to have left."""

    async def receive() -> Message:
        await asyncio.sleep(0.02 if leaves else 60)
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    async def work() -> None:
        raise Unavailable("The verifier is not there.")

    exchange = Exchange(scope={"type": "http", "headers": []}, receive=receive, send=send)
    with pytest.raises(ClientGone if leaves else Unavailable):
        await exchange.until_left(work())
