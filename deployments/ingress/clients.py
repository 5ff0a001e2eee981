"""The ports over Ray Serve handles: which transport each call takes, and Ray's errors in our words.

Streams and small calls use the direct gRPC transport, half as slow as actor calls but capped at 4 MiB a message;
what can be larger (the token table, long prompts) goes by reference. Control calls are broadcast: they bypass the
limit on ongoing requests, so that a full verifier still answers a health probe.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from grpc.aio import AioRpcError  # type: ignore[import-untyped]  # grpcio ships no types
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.messages.drafting import DrafterEndpoint
from deployments.messages.errors import OutriderError, QueueFull, Unavailable
from deployments.messages.gates import GateReport
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    GenerateRequest,
    ModelCard,
    TokenChunk,
    TokenTable,
)

_SMALL_TEXT = 256 * 1024
"""Characters; four bytes each, and a token id of five bytes for each, stay well below the transport's cap."""

_PATIENCE_S = 3.0
"""How long a reply may take to begin, and a replica to answer, before a caller is told that the verifier is away."""

_STRAGGLER_S = 0.5
"""How long replicas are waited for while another has answered; within the second `/health` and `/metrics` have."""

_AWAY = (
    RayActorError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
    AioRpcError,
)


@contextmanager
def translated(part: str, /) -> Iterator[None]:
    """Raises Ray's errors as ours.

    Args:
        part: the deployment that is called, for the sentence.
    """
    try:
        yield
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, OutriderError):
            raise cause from None
        if isinstance(cause, _AWAY):
            raise _away(part) from error
        raise
    except BackPressureError as error:
        raise QueueFull(f"The {part} has no room for more requests; try again in a moment.") from error
    except _AWAY as error:
        raise _away(part) from error
    except asyncio.CancelledError:
        # Serve also reports a call that was cancelled at its far end this way; nobody cancelled this task then.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _away(part) from None


def _away(part: str, /) -> Unavailable:
    return Unavailable(f"The {part} is not there at the moment; send the request again shortly.")


class TokenizerClient:
    """`TokenizerPort` over a handle of the tokenizer deployment."""

    def __init__(self, handle: DeploymentHandle[Any], /) -> None:
        self._handle = handle
        self._chat = handle.options(method_name="encode_chat", _by_reference=False)
        self._text = handle.options(method_name="encode_text", _by_reference=False)
        self._long_chat = handle.options(method_name="encode_chat")
        self._long_text = handle.options(method_name="encode_text")
        self._table = handle.options(method_name="table")

    async def encode_chat(self, turns: tuple[ChatTurn, ...], /) -> EncodedPrompt:
        small = sum(len(turn.content) for turn in turns) <= _SMALL_TEXT and len(turns) <= _SMALL_TEXT // 64
        with translated("tokenizer"):
            encoded: EncodedPrompt = await (self._chat if small else self._long_chat).remote(turns)
        return encoded

    async def encode_text(self, text: str, /) -> EncodedPrompt:
        with translated("tokenizer"):
            encoded: EncodedPrompt = await (self._text if len(text) <= _SMALL_TEXT else self._long_text).remote(text)
        return encoded

    async def table(self) -> TokenTable:
        with translated("tokenizer"):
            table: TokenTable = await self._table.remote()
        return table

    async def metrics(self) -> list[str]:
        return await gathered(self._handle, method="metrics", part="tokenizer")


class VerifierClient:
    """`VerifierPort` over a handle of the verifier deployment.

    Args:
        patience_s: how long a reply may take to begin before it is asked whether a replica is there at all.
    """

    def __init__(self, handle: DeploymentHandle[Any], /, *, patience_s: float = _PATIENCE_S) -> None:
        self._handle = handle
        self._patience_s = patience_s
        # Chunks are plain structs; the default looks for functions and classes in each, which takes longer.
        self._generate = handle.options(
            method_name="generate", stream=True, _by_reference=False, response_serialization="pickle"
        )

    async def generate(self, request: GenerateRequest, /) -> AsyncGenerator[TokenChunk]:
        response = cast("DeploymentResponseGenerator[TokenChunk]", self._generate.remote(request))
        ended = False
        try:
            with translated("verifier"):
                chunks = aiter(response)
                yield await self._first(chunks)
                async for chunk in chunks:
                    yield chunk
            ended = True
        finally:
            if not ended:
                response.cancel()

    async def _first(self, chunks: AsyncIterator[TokenChunk], /) -> TokenChunk:
        """The first chunk. Serve holds a call back while there is no replica; a client is told instead of kept waiting.

        Raises:
            Unavailable: nothing came, and no replica answers either.
        """
        waiting = asyncio.ensure_future(anext(chunks))
        try:
            while not (await asyncio.wait({waiting}, timeout=self._patience_s))[0]:
                # A replica that answers has the request in its queue: then waiting is right.
                async with asyncio.timeout(self._patience_s):
                    await self.card()
            return await waiting
        except (TimeoutError, StopAsyncIteration) as error:
            raise _away("verifier") from error
        finally:
            waiting.cancel()

    async def card(self) -> ModelCard:
        cards: list[ModelCard] = await gathered(self._handle, method="card", part="verifier")
        return cards[0]

    async def gates(self) -> list[GateReport]:
        return await gathered(self._handle, method="gates", part="verifier")

    async def profile(self, seconds: float, /) -> bytes:
        with translated("verifier"):
            archive: bytes = await self._handle.options(method_name="profile").remote(seconds)
        return archive

    async def metrics(self) -> list[str]:
        return await gathered(self._handle, method="metrics", part="verifier")


class DrafterClient:
    """`DrafterPort` over a handle of the drafter deployment."""

    def __init__(self, handle: DeploymentHandle[Any], /) -> None:
        self._handle = handle

    async def endpoints(self) -> list[DrafterEndpoint]:
        return await gathered(self._handle, method="endpoint", part="drafter")

    async def metrics(self) -> list[str]:
        return await gathered(self._handle, method="metrics", part="drafter")


async def gathered(handle: DeploymentHandle[Any], /, *, method: str, part: str) -> list[Any]:
    """What every replica answers; one that fails, or hangs, is left out while another answers.

    Raises:
        Unavailable: none answered.
    """
    with translated(part):
        # `results_async` would wait for all of them, and one that hangs would keep what the others say.
        replicas = await handle.broadcast(method)._fetch_replica_results_async()
    given = [task.result() for task in await _answered(replicas) if task.exception() is None]
    if not given:
        raise _away(part)
    return given


async def _answered(replicas: Sequence[Any], /) -> list[asyncio.Task[Any]]:
    """Those that answered or failed in time; longer only until the first one answers."""
    pending = {asyncio.ensure_future(replica.get_async()) for replica in replicas}
    settled: list[asyncio.Task[Any]] = []
    try:
        patience_s: float | None = _STRAGGLER_S
        while pending:
            done, pending = await asyncio.wait(
                pending,
                timeout=patience_s,
                return_when=asyncio.ALL_COMPLETED if patience_s else asyncio.FIRST_COMPLETED,
            )
            settled += [task for task in done if not task.cancelled()]
            if any(task.exception() is None for task in settled):
                break
            patience_s = None
        return settled
    finally:
        for task in pending:
            task.cancel()
