"""Windows of a service whose times are known, and a watch of the gates that notes what is said about them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
from msgspec.structs import replace

from deployments.messages.gates import ExpectedGain, GateReport, LiveGain, SpeculationRule
from deployments.messages.generation import FinishReason
from deployments.verifier.delivery import Advance, Landed, UnderWay
from deployments.verifier.drafts import Drafts
from deployments.verifier.live_gain import GainSpan, LiveGains
from deployments.verifier.plan import Span, StepPlan
from deployments.verifier.programs import Launched
from deployments.verifier.reporting import Drawn
from deployments.verifier.slots import Slot
from tests.verifier.test_engine import request

SLOTS = 4
SPAN = GainSpan(windows=50, seconds=1.0)
HOST_S = 0.001
WINDOW = Launched(hidden=jnp.zeros((1, 1)), emitted=None, wants_logprobs=False)


def expecting(*numbers: int, gain: float = 1.6) -> tuple[ExpectedGain, ...]:
    return tuple(
        ExpectedGain(active=active, gain=gain, tokens_per_round=2.0, plain_window_ms=20.0, window_ms=25.0)
        for active in numbers
    )


RULE = SpeculationRule(
    kind="guessing",
    state="settled",
    gated=True,
    reason="passed",
    sentence="passed on this chip",
    k_by_active_slots=(3, 3, 3, 0),
    stop_above=3,
    expected=expecting(1, 2, 3),
)
STOPPED = replace(RULE, kind=None, state="declined", reason="not_faster", k_by_active_slots=(0,) * SLOTS, expected=())


@dataclass(kw_only=True)
class Watch:
    """A `GateWatch` that notes what it is told, and may stop drafts at it."""

    rule: SpeculationRule = RULE
    stops: bool = False
    told: list[LiveGain] = field(default_factory=list)

    def report(self) -> GateReport:
        return GateReport(schema=1, replica="v", rule=self.rule)

    def gain_found(self, found: LiveGain, /) -> None:
        self.told.append(found)
        if found.is_lost and self.stops:
            self.rule = STOPPED

    def close(self) -> None: ...


class Serving:
    """Windows of a service, one after the other, each as long as is said."""

    def __init__(self, watch: Watch | None = None, /, *, span: GainSpan = SPAN) -> None:
        self.watch = watch or Watch()
        self.gains = LiveGains(self.watch, span=span)
        self.now = 0.0
        self.windows = 0

    def window(
        self,
        *kept: int | None,
        window_s: float | None = None,
        wait_s: float = 0.0,
        follows: bool = True,
        prompt: int = 0,
        lost: int = 0,
        finish: FinishReason | None = None,
        joins: bool = False,
    ) -> None:
        """One window: for each slot how many of three drafts were kept, or `None` where it had none.

        Of the first `lost` slots nothing is known afterwards: their requests are gone. One that `joins` runs in the
        same call as the one before it, without the host.
        """
        is_drafted = any(each is not None for each in kept)
        window_s = window_s or (0.025 if is_drafted else 0.020)
        launched = self.now if joins else self.now + HOST_S + wait_s
        spans = [Span(slot=_slot(), start=9, tokens=(1,) * _rows(each), emits=_rows(each)) for each in kept]
        steps = [_step(span, kept=each or 0, finish=finish) for span, each in zip(spans, kept, strict=True)]
        if prompt:
            spans.append(Span(slot=_slot(), start=0, tokens=(1,) * prompt, emits=0))
        flight = UnderWay(
            plan=StepPlan(spans=tuple(spans)),
            drafts=Drafts(),
            window=None if joins else WINDOW,
            follows=self.now if follows else None,
            waited=wait_s,
            launched_at=launched,
            rows=8,
        )
        self.now = launched + window_s
        self.windows += 1
        self.gains.landed(Landed(steps=steps[lost:], flight=flight, at=self.now))

    def until_told(self, spans: int, /, *, windows: Callable[[], None]) -> list[LiveGain]:
        """What is said in the next spans of such windows."""
        before = len(self.watch.told)
        for _ in range(10_000):
            windows()
            if len(self.watch.told) == before + spans:
                return self.watch.told[before:]
        raise AssertionError("nothing was said")


def _rows(kept: int | None) -> int:
    return 1 if kept is None else 4


def _slot() -> Slot:
    return Slot(index=0, request=request(0), tokens=[1] * 9, pages=(), admitted_at=0.0)


def _step(span: Span, *, kept: int, finish: FinishReason | None) -> Advance:
    drawn = Drawn(tokens=(1,) * (kept + 1), logprobs=None)
    fresh = drawn.tokens[:-1] if finish is FinishReason.STOP else drawn.tokens
    return Advance(span=span, drawn=drawn, fresh=fresh, finish=finish, is_first=False)
