"""What one deployment needs of another, as the caller sees it. Serve handles and in-process objects both fit."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from deployments.messages.drafting import DrafterEndpoint
from deployments.messages.gates import GateReport, LiveGain, ProgramFacts, SpeculationRule
from deployments.messages.generation import (
    ChatTurn,
    EncodedPrompt,
    GenerateRequest,
    ModelCard,
    TokenChunk,
    TokenTable,
)


class Locate(Protocol):
    """Finds a model on the machine that asks, fetching it if need be; passed in by `build`, pickled to replicas."""

    def __call__(self, model: str, /) -> Path:
        """Raises `CheckpointError` or `ConfigError` when there is no such model."""


class GateWatch(Protocol):
    """What the gates say about one verifier's programs, from now on."""

    @property
    def rule(self) -> SpeculationRule:
        """What to obey in the next window; asked in every one, in any thread, and never waits."""

    def report(self) -> GateReport:
        """The rule and what it follows from; never waits."""

    def gain_found(self, found: LiveGain, /) -> None:
        """Told by the verifier after every span of windows it has looked at; the rule may be another afterwards."""

    def close(self) -> None:
        """Stops watching; the rule stays."""


class Gatekeeper(Protocol):
    """Finds out what may run; passed in by `build`, pickled to the verifier's replicas, called once in each."""

    def __call__(self, facts: ProgramFacts, /) -> GateWatch:
        """Looks at the gates once before it returns. Raises `CheckpointError` when the model cannot be read."""


class TokenizerPort(Protocol):
    """Text to ids. Raises `InvalidRequest` for a conversation the template refuses."""

    async def encode_chat(self, turns: tuple[ChatTurn, ...], /) -> EncodedPrompt: ...

    async def encode_text(self, text: str, /) -> EncodedPrompt: ...

    async def table(self) -> TokenTable: ...

    async def metrics(self) -> list[str]:
        """The exposition of every replica."""


class VerifierPort(Protocol):
    """Ids to ids. Closing the stream cancels the request within one window."""

    def generate(self, request: GenerateRequest, /) -> AsyncIterator[TokenChunk]:
        """Streams a reply.

        Raises:
            ContextTooLong: prompt and `max_tokens` exceed the context.
            QueueFull: no room to wait.
            Unavailable: the verifier is away.
        """

    async def card(self) -> ModelCard: ...

    async def gates(self) -> list[GateReport]:
        """What the gates say about each replica."""

    async def profile(self, seconds: float, /) -> bytes:
        """A trace of one replica for so long, as a gzipped archive.

        Raises:
            Unavailable: one is being taken, or no replica is there.
        """

    async def metrics(self) -> list[str]: ...


class DrafterPort(Protocol):
    """The control side of the drafter deployment; drafts themselves travel over its socket."""

    async def endpoints(self) -> list[DrafterEndpoint]: ...

    async def metrics(self) -> list[str]: ...
