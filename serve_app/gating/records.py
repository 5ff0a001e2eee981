"""Records of the gates: a key, evidence and a verdict; and, kept apart from them, what an operator forced.

A record that contradicts its own evidence cannot be made, wherever it comes from.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from serve_app.gating.evidence import ExactnessEvidence, ProfitEvidence
from serve_app.gating.keys import ExactnessKey, Name, ProfitKey, record_id, struct_id

type Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Verdict(StrEnum):
    """What a measurement came to. An operator's word is none of these."""

    PASS = "pass"
    FAIL = "fail"
    DID_NOT_RUN = "did_not_run"


class Reason(StrEnum):
    """Why a record has not passed."""

    INEXACT = "inexact"
    RUNG_REFUSED = "rung_refused"
    NOT_FASTER = "not_faster"
    NOTHING_COMPARED = "nothing_compared"
    NO_DRAFTS = "no_drafts"
    NOT_APPLICABLE = "not_applicable"
    FAILED = "failed"


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When, and by which version of Outrider."""

    at: Moment
    outrider: Name


_FAILURES = {
    "ExactnessRecord": frozenset({Reason.INEXACT, Reason.RUNG_REFUSED}),
    "ProfitRecord": frozenset({Reason.NOT_FASTER}),
}
_HINDRANCES = frozenset({Reason.NOTHING_COMPARED, Reason.NO_DRAFTS, Reason.NOT_APPLICABLE, Reason.FAILED})


class _Judged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    verdict: Verdict
    reason: Reason | None = None
    detail: str = ""
    measured: Measured

    def __post_init__(self) -> None:
        allowed: dict[Verdict, frozenset[Reason | None]] = {
            Verdict.PASS: frozenset({None}),
            Verdict.FAIL: frozenset(_FAILURES[type(self).__name__]),
            Verdict.DID_NOT_RUN: frozenset(_HINDRANCES),
        }
        if self.reason not in allowed[self.verdict]:
            choices = ", ".join(sorted(reason.value if reason else "none" for reason in allowed[self.verdict]))
            raise ValueError(f"verdict {self.verdict.value} needs one of the reasons {choices}")

    @property
    def has_passed(self) -> bool:
        return self.verdict is Verdict.PASS

    @property
    def verdict_text(self) -> str:
        """Verdict and reason, for people."""
        return self.verdict.value if self.reason is None else f"{self.verdict.value} ({self.reason.value})"


class ExactnessRecord(_Judged, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether a program gives the plain replies, whatever is drafted.

    Attributes:
        detail: a sentence for people.
    """

    key: ExactnessKey
    evidence: ExactnessEvidence = ExactnessEvidence()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verdict is Verdict.PASS and (self.evidence.mismatches or not self.evidence.tokens):
            raise ValueError("a pass needs tokens compared and no mismatches")
        if self.reason is Reason.INEXACT and not self.evidence.mismatches:
            raise ValueError("an inexact program needs a mismatch")

    @property
    def id(self) -> str:
        return record_id(self.key)


class ProfitRecord(_Judged, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether a drafter pays on a program.

    Attributes:
        detail: a sentence for people.
    """

    key: ProfitKey
    evidence: ProfitEvidence = ProfitEvidence()

    def __post_init__(self) -> None:
        super().__post_init__()
        best = self.evidence.best
        if self.verdict is Verdict.PASS and (best is None or best.ratio.median <= 1.0):
            raise ValueError("a pass needs a number of active slots at which speculation is faster")

    @property
    def id(self) -> str:
        return record_id(self.key)


type Record = ExactnessRecord | ProfitRecord


class Setting(StrEnum):
    """What an operator forces."""

    ON = "on"
    OFF = "off"


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is forced: every pairing that has all the parts given here; without any, everything.

    Attributes:
        pairing: the id of one profit key.
        kind: a kind of drafter.
        chip: a kind of chip.
        model: a model's fingerprint.
    """

    pairing: str = ""
    kind: str = ""
    chip: str = ""
    model: str = ""

    def holds(self, key: ProfitKey, /) -> bool:
        """Whether this pairing is meant."""
        given = (
            (self.pairing, record_id(key)),
            (self.kind, key.drafter.kind),
            (self.chip, key.program.chip.kind),
            (self.model, key.program.model),
        )
        return all(wanted in ("", found) for wanted, found in given)

    def __str__(self) -> str:
        parts = [f"{name} {value}" for name in self.__struct_fields__ if (value := getattr(self, name))]
        return ", ".join(parts) or "everything"


class Forced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An operator's word: it decides, and it measures nothing."""

    target: Target
    setting: Setting
    by: Name
    at: Moment
    why: str = ""

    @property
    def id(self) -> str:
        return struct_id(self.target)

    @staticmethod
    def id_for(target: Target, /) -> str:
        """The id of what is forced for this target."""
        return struct_id(target)

    def __str__(self) -> str:
        return f"forced {self.setting.value} by {self.by}" + (f": {self.why}" if self.why else "")
