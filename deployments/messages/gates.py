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
    """

    kind: str | None
    state: str
    gated: bool
    reason: str
    sentence: str
    k_by_active_slots: tuple[int, ...] = ()
    stop_above: int | None = None
    revision: int = 0

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
    """

    schema: int
    replica: str
    rule: SpeculationRule
    candidates: tuple[dict[str, Any], ...] = ()
    store: dict[str, Any] = {}
