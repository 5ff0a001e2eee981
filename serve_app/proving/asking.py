"""Puts questions to a verifier, so many at a time, and gathers whole replies."""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from deployments.messages.errors import Unavailable
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
    """
    waiting = deque(questions)
    replies: dict[str, Reply] = {}

    async def work() -> None:
        while waiting:
            question = waiting.popleft()
            request = msgspec.structs.replace(question.request, speculation=speculation)
            replies[question.name] = await _reply(request, verifier=verifier)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(work())
    return replies


async def _reply(request: GenerateRequest, *, verifier: VerifierPort) -> Reply:
    token_ids: list[int] = []
    async for chunk in verifier.generate(request):
        token_ids += chunk.token_ids
        if chunk.finish_reason is not None:
            return Reply(token_ids=tuple(token_ids), finish_reason=chunk.finish_reason, statistics=chunk.statistics)
    raise Unavailable(f"the reply to {request.request_id} stopped without an end; run the proof again")
