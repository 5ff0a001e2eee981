"""Puts questions to a verifier, so many at a time, and gathers whole replies."""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from deployments.messages.errors import OutriderError, Unavailable
from deployments.messages.generation import GenerateRequest, SpeculationSettings
from deployments.messages.ports import VerifierPort
from serve_app.proving.comparison import Replies, Reply
from serve_app.proving.workload import Question


async def replies_to(
    questions: Sequence[Question], /, *, verifier: VerifierPort, streams: int, speculation: SpeculationSettings
) -> Replies:
    """The reply to each question, by its name.

    Args:
        streams: how many are in the batch at once; the next one begins when one ends.

    Raises:
        OutriderError: the verifier gave up one of them; the others are cancelled.
    """
    waiting = deque(questions)
    replies: dict[str, Reply] = {}

    async def work() -> None:
        while waiting:
            question = waiting.popleft()
            request = msgspec.structs.replace(question.request, speculation=speculation)
            replies[question.name] = await _reply(request, verifier=verifier)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(work())
    except* OutriderError as failed:
        raise _first(failed) from None
    return replies


def _first(failed: BaseExceptionGroup[OutriderError]) -> OutriderError:
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _reply(request: GenerateRequest, *, verifier: VerifierPort) -> Reply:
    chunks = [chunk async for chunk in verifier.generate(request)]
    reason = chunks[-1].finish_reason if chunks else None
    if reason is None:
        raise Unavailable(f"the reply to {request.request_id} stopped without an end; run the proof again")
    return Reply(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=reason,
        statistics=chunks[-1].statistics,
    )
