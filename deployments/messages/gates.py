"""What a verifier says about its programs, and what it obeys when it speculates. Frozen; plain values, no JAX."""

from typing import Any

import msgspec


class ProgramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which bits a verifier's programs compute, as far as the verifier knows it.

    Attributes:
        platform, device_kind: of the first device, as JAX names them.
        devices: chips that share the model.
        topology: how they are wired, as `2x2x1`; empty for one.
        model_files: all of them, in an order that does not change.
        kernels: which kernels; native ones with the fingerprint of their library.
        ladder: row counts of the compiled windows, whether the probe found them exact or not.
        draft_rows: the most drafts of all requests together.
        programs: the fingerprint of all lowered programs.
    """

    platform: str
    device_kind: str
    devices: int = 1
    topology: str = ""
    model_files: tuple[str, ...]
    architecture: str
    precision: str
    kernels: str
    page_size: int
    context: int
    cache_pages: int
    ladder: tuple[int, ...]
    slots: int
    draft_k: int
    draft_rows: int
    programs: str


class GainFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What drafts are worth, as measured once or as found while serving.

    Attributes:
        gain: how many times as fast as plain decoding.
        tokens_per_round: what a window gives a request that has drafts in it.
        plain_window_ms, window_ms: a window in which nobody has drafts, and one in which somebody has.
    """

    gain: float
    tokens_per_round: float
    plain_window_ms: float
    window_ms: float


class ExpectedGain(GainFigures, frozen=True, kw_only=True):
    """What the record promises with so many active slots."""

    active: int


class LiveGain(msgspec.Struct, frozen=True, kw_only=True):
    """What drafts were worth over a span of windows that served, all numbers of active slots together.

    Attributes:
        windows, drafted_windows, seconds: how much was looked at, and how many of the windows had drafts.
        plain_windows: `seen` if windows without drafts were, and at every number of active slots; else `recorded`: the
            record's stand in for those that were not.
        wait_ms: for drafts, per window.
        found, recorded: by time, at the numbers of active slots that there were.
        is_lost: whether the gain is gone for good, as far as spans of windows tell.
    """

    windows: int
    drafted_windows: int
    seconds: float
    plain_windows: str
    wait_ms: float
    found: GainFigures
    recorded: GainFigures
    is_lost: bool


class SpeculationRule(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and how much a verifier drafts, from its next window on.

    Attributes:
        kind: the drafter that may run; `None` for none.
        state: `settled`, `unknown`, `forced` or `declined`.
        gated: whether measurements on this chip allow it, and nothing else.
        reason: one word; where nothing runs, it is why requests are declined.
        sentence: the same for people.
        k_by_active_slots: the most drafts of a request with 1, 2, ... active slots; 0 for none.
        stop_above: the most active slots with drafts; `None` where there is no such limit.
        revision: of the gates it follows from.
        expected: what was measured of it, at each number of active slots where that paid; none without a record.
    """

    kind: str | None
    state: str
    gated: bool
    reason: str
    sentence: str
    k_by_active_slots: tuple[int, ...] = ()
    stop_above: int | None = None
    revision: int = 0
    expected: tuple[ExpectedGain, ...] = ()

    def k_for(self, active: int, /) -> int:
        """The most drafts of a request with so many active slots."""
        if self.kind is None or not 0 < active <= len(self.k_by_active_slots):
            return 0
        return self.k_by_active_slots[active - 1]


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What operators see of the gates of one verifier.

    Attributes:
        schema: of the records.
        replica: as in the metrics' label.
        rule: what is obeyed now.
        candidates: for each drafter that was considered its key and what was measured, or forced, for it.
        store: how the store of the gates was found, and what it counts.
        live: what drafts were worth here lately; `None` until enough windows have run. It is no evidence.
        gains_lost: how often the gain was found to be gone.
    """

    schema: int
    replica: str
    rule: SpeculationRule
    candidates: tuple[dict[str, Any], ...] = ()
    store: dict[str, Any] = {}
    live: LiveGain | None = None
    gains_lost: int = 0
