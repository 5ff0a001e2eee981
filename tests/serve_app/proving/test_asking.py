import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from deployments.messages.errors import OutriderError, QueueFull, Unavailable
from deployments.messages.gates import GateReport
from deployments.messages.generation import FinishReason, GenerateRequest, ModelCard, SpeculationSettings, TokenChunk
from serve_app.proving.asking import replies_to
from serve_app.proving.workload import PLAIN, SPECULATING, Mode, Question


class Script:
    """A verifier that gives every request its prompt back, one token a chunk."""

    def __init__(
        self, *, ends: bool = True, fails: Callable[[GenerateRequest], OutriderError | None] | None = None
    ) -> None:
        self._ends = ends
        self._fails = fails or (lambda _: None)
        self.open = 0
        self.most_open = 0
        self.speculation: list[SpeculationSettings] = []

    async def generate(self, request: GenerateRequest, /) -> AsyncIterator[TokenChunk]:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        self.speculation.append(request.speculation)
        try:
            await asyncio.sleep(0.001)
            if (error := self._fails(request)) is not None:
                raise error
            for token in request.prompt_ids:
                yield TokenChunk(token_ids=(token,))
            if self._ends:
                yield TokenChunk(token_ids=(), finish_reason=FinishReason.STOP)
        finally:
            self.open -= 1

    async def card(self) -> ModelCard:
        raise NotImplementedError

    async def metrics(self) -> list[str]:
        raise NotImplementedError

    async def gates(self) -> list[GateReport]:
        raise NotImplementedError

    async def profile(self, seconds: float, /) -> bytes:
        raise NotImplementedError


def questions(count: int) -> tuple[Question, ...]:
    return tuple(
        Question(
            mode=Mode.GREEDY,
            request=GenerateRequest(request_id=f"q{number}", prompt_ids=(number, number + 1), max_tokens=4),
        )
        for number in range(count)
    )


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_question_is_answered_so_many_at_a_time(streams: int) -> None:
    verifier = Script()
    replies = await replies_to(questions(7), verifier=verifier, streams=streams, speculation=PLAIN)
    assert {name: reply.token_ids for name, reply in replies.items()} == {f"q{n}": (n, n + 1) for n in range(7)}
    assert verifier.most_open == streams
    assert set(verifier.speculation) == {PLAIN}


async def test_an_error_is_raised_as_it_is_and_ends_the_others() -> None:
    verifier = Script(fails=lambda request: QueueFull("full") if request.request_id == "q2" else None)
    with pytest.raises(QueueFull, match="full"):
        await replies_to(questions(8), verifier=verifier, streams=4, speculation=SPECULATING)
    assert verifier.open == 0


async def test_a_reply_without_an_end_is_no_reply() -> None:
    with pytest.raises(Unavailable, match="q0"):
        await replies_to(questions(1), verifier=Script(ends=False), streams=1, speculation=PLAIN)
