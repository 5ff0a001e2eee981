"""A window under way, what it did to each request, and what whoever waits is told. Data only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from deployments.messages.errors import DeadlinePassed, OutriderError
from deployments.messages.generation import FinishReason, TokenChunk
from deployments.verifier.drafts import Drafts
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Launched, WindowResult
from deployments.verifier.reporting import Drawn
from deployments.verifier.slots import Slot


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Something for whoever waits for a request: a chunk, or the error that ends it."""

    request_id: str
    chunk: TokenChunk | None = None
    error: OutriderError | None = None


class Advance(NamedTuple):
    """What a window did to one request; `is_first` if these are its first tokens."""

    span: Span
    drawn: Drawn
    fresh: tuple[int, ...]
    finish: FinishReason | None
    is_first: bool


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """A window the device works on.

    Attributes:
        window: `None` where it was part of a call of several.
        follows: when the window before it landed; `None` where the device had nothing to do in between.
        waited: seconds for drafts.
    """

    plan: StepPlan
    drafts: Drafts
    window: Launched | None
    follows: float | None
    waited: float
    launched_at: float
    rows: int

    def windows(self, clock: Callable[[], float], /) -> "Iterator[Came]":
        """Waits for it."""
        assert self.window is not None
        result = self.window.result()
        yield Came(flight=self, result=result, at=clock())


class Came(NamedTuple):
    """What a window brought, and when."""

    flight: UnderWay
    result: WindowResult | None
    at: float


@dataclass(frozen=True, kw_only=True)
class Landed:
    """A window whose tokens are known, and when they were."""

    steps: list[Advance]
    flight: UnderWay
    at: float


def refusal(slot: Slot, /) -> Delivery:
    """For a request that waited too long for a slot."""
    request = slot.request
    error = DeadlinePassed(
        f"no slot was free within the {request.deadline_s:g} s this request was willing to wait; it was not started, "
        "so send it again, later or with more time"
    )
    return Delivery(request_id=request.request_id, error=error)
