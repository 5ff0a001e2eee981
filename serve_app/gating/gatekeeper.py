"""Gates at work: a verifier's programs get their keys, the store is watched, and each change becomes a new rule.

Runs in the verifier's replica, which it looks at the machine of. Knows stores and policy; no windows, no requests.
"""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from ray import serve
from ray.serve.exceptions import RayServeException

from deployments.lm.drafting.build import StrategySettings
from deployments.messages.gates import GateReport, LiveGain, ProgramFacts, SpeculationRule
from deployments.messages.ports import GateWatch
from serve_app.gating.encoding import SCHEMA
from serve_app.gating.lost_gain import Action, OnLostGain, gain_line, stopped_rule
from serve_app.gating.opening import StoreSettings, open_store
from serve_app.gating.policy import LEAST_GAIN, Candidate, Decision, Order, Why, decide, decide_picked
from serve_app.gating.reporting import described_candidate, described_store
from serve_app.gating.running import exactness_key, profit_key
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import Change, GateStore, StoreState

_TROUBLE = (StoreState.MISSING, StoreState.UNREADABLE, StoreState.UNREACHABLE)
_REMEDY = "run 'outrider gate run' with this configuration to measure it"

type Say = Callable[[dict[str, object]], None]


class Choosing(StrEnum):
    """Who chooses the drafter: the gates, the configuration with the gates' consent, or it alone."""

    AUTO = "auto"
    PICKED = "picked"
    UNGATED = "ungated"


@dataclass(frozen=True, kw_only=True)
class DrafterChoice:
    """A drafter that may be chosen.

    Attributes:
        kind: as it calls itself.
    """

    kind: str
    settings: StrategySettings
    placement: str = "remote"


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """What the gatekeeper is told. Pickled to every replica of the verifier.

    Attributes:
        drafters: in the order of the documents; none where speculation is off.
        reason: why these, for sentences.
        order, least_gain: as in `policy.decide`.
        on_lost_gain: what to do when drafts gain nothing any more; not where an operator's word alone lets them run.
    """

    store: StoreSettings
    choosing: Choosing
    drafters: tuple[DrafterChoice, ...]
    reason: str
    order: Order = Order.DOCUMENTS
    least_gain: float = LEAST_GAIN
    on_lost_gain: OnLostGain = OnLostGain.WARN


def say_line(line: dict[str, object], /) -> None:
    """One line of JSON on stderr."""
    print(json.dumps(line), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class StoreGatekeeper:
    """A `Gatekeeper` over a store of gates."""

    settings: GateSettings

    def __call__(self, facts: ProgramFacts, /) -> GateWatch:
        settings = self.settings
        if not settings.drafters or settings.choosing is Choosing.UNGATED:
            return FixedWatch(settings, facts=facts)
        program = exactness_key(facts)
        candidates = tuple(
            Candidate(
                kind=drafter.kind,
                key=profit_key(program, kind=drafter.kind, settings=drafter.settings, placement=drafter.placement),
            )
            for drafter in settings.drafters
        )
        return StoreWatch(open_store(settings.store), settings=settings, candidates=candidates, slots=facts.slots)


class FixedWatch:
    """A `GateWatch` where the configuration alone decides: no drafter, or one that is there for a proof."""

    def __init__(self, settings: GateSettings, *, facts: ProgramFacts) -> None:
        chosen = settings.drafters[0] if settings.drafters else None
        self.rule = SpeculationRule(
            kind=None if chosen is None else chosen.kind,
            state="declined" if chosen is None else "forced",
            gated=False,
            reason=Why.DISABLED_BY_OPERATOR if chosen is None else Why.PICKED,
            sentence=settings.reason,
            k_by_active_slots=(0 if chosen is None else facts.draft_k,) * facts.slots,
            stop_above=0 if chosen is None else None,
        )

    def report(self) -> GateReport:
        """The rule; there is no evidence."""
        return GateReport(schema=SCHEMA, replica=replica_name(), rule=self.rule)

    def gain_found(self, found: LiveGain, /) -> None:
        """There is no record to hold it against."""

    def close(self) -> None:
        """Nothing is watched."""


class StoreWatch:
    """A `GateWatch` over a store. Every change of the store is said in one line.

    Args:
        slots: of the verifier.
    """

    def __init__(
        self,
        store: GateStore,
        /,
        *,
        settings: GateSettings,
        candidates: tuple[Candidate, ...],
        slots: int,
        say: Say = say_line,
    ) -> None:
        self._store = store
        self._settings = settings
        self._candidates = candidates
        self._slots = slots
        self._say = say
        # Two threads make rules: the store's, and the engine's, which must not wait long.
        self._changing = threading.Lock()
        self._live: LiveGain | None = None
        self._is_stopped = False
        self._gains_lost = 0
        self._gates = store.load()
        # Replaced whole and never changed: whoever reads it, in whatever thread, has one rule.
        self._rule = self._ruled(self._gates)
        store.watch(self._follow)

    @property
    def rule(self) -> SpeculationRule:
        return self._rule

    def report(self) -> GateReport:
        """The rule, with each candidate's key and what is recorded for it."""
        with self._changing:
            gates, rule, live, lost = self._gates, self._rule, self._live, self._gains_lost
        return GateReport(
            schema=SCHEMA,
            replica=replica_name(),
            rule=self._told(rule),
            candidates=tuple(described_candidate(each, gates=gates) for each in self._candidates),
            store=described_store(self._store.status()),
            live=live,
            gains_lost=lost,
        )

    def gain_found(self, found: LiveGain, /) -> None:
        """Says so when the gain is gone, or back; where it is asked for, nothing is drafted from then on."""
        with self._changing:
            rule, action = self._rule, Action.NONE
            # The rule is another one since.
            if rule.kind is None or not rule.expected:
                return
            was_lost, self._live = self._live is not None and self._live.is_lost, found
            if found.is_lost == was_lost:
                return
            if found.is_lost:
                self._gains_lost += 1
                is_stopping = self._settings.on_lost_gain is OnLostGain.STOP and rule.gated
                action = Action.STOPPED if is_stopping else Action.WARNED
            if action is Action.STOPPED:
                self._is_stopped, self._rule = True, stopped_rule(rule, found=found)
        self._say(gain_line(found, rule=rule, action=action))

    def close(self) -> None:
        """Stops watching; the rule stays."""
        self._store.close()

    def _follow(self, change: Change, /) -> None:
        if change.new == self._gates:
            return
        with self._changing:
            if self._records(change.new) != self._records(self._gates):
                self._is_stopped = False
            before, rule = self._rule, self._ruled(change.new)
            # What was found is about what was promised; whoever looks begins anew then, too.
            if rule.expected != before.expected:
                self._live = None
            self._gates, self._rule = change.new, rule
        self._say(
            {
                "event": "gates",
                "revision": rule.revision,
                "changes": list(change.changes),
                "used": rule.kind is not None,
                "method": rule.kind,
                "state": rule.state,
                "gated": rule.gated,
                "reason": rule.reason,
                "sentence": self._told(rule).sentence,
                "stop_above": rule.stop_above,
                "before": {"method": before.kind, "state": before.state, "reason": before.reason},
            }
        )

    def _ruled(self, gates: Snapshot) -> SpeculationRule:
        decision = self._decided(gates)
        parts = [self._settings.reason, decision.sentence]
        if decision.reason is Why.NOT_GATED and decision.kind is None:
            parts.append(_REMEDY)
        rule = SpeculationRule(
            kind=decision.kind,
            state=decision.state.value,
            gated=decision.gated,
            reason=decision.reason.value,
            sentence="; ".join(parts),
            k_by_active_slots=decision.k_by_active_slots,
            stop_above=decision.stop_above,
            revision=decision.revision,
            expected=decision.expected,
        )
        return stopped_rule(rule, found=self._live) if self._is_stopped and self._live is not None else rule

    def _told(self, rule: SpeculationRule) -> SpeculationRule:
        """With what is wrong with the store now; a rule outlasts that."""
        status = self._store.status()
        if status.state not in _TROUBLE:
            return rule
        trouble = f"the store of the gates is {status.state.value}: {status.detail}"
        return msgspec.structs.replace(rule, sentence=f"{rule.sentence}; {trouble}")

    def _records(self, gates: Snapshot) -> list[object]:
        """What the store says of the candidates, an operator's word included."""
        keys = [each.key for each in self._candidates if each.key is not None]
        return [(gates.exactness_for(key.program), gates.profit_for(key), gates.forced_for(key)) for key in keys]

    def _decided(self, gates: Snapshot) -> Decision:
        settings = self._settings
        if settings.choosing is Choosing.PICKED:
            return decide_picked(
                gates, candidate=self._candidates[0], slots=self._slots, least_gain=settings.least_gain
            )
        return decide(
            gates,
            candidates=self._candidates,
            slots=self._slots,
            order=settings.order,
            least_gain=settings.least_gain,
        )


def replica_name() -> str:
    """As in the metrics' label `replica`."""
    try:
        tag: str = serve.get_replica_context().replica_tag
    except RayServeException:
        return "local"
    return tag
