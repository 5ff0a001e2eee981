"""Records to test with: whole and valid, with parts replaced as asked."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from serve_app.gating.evidence import (
    Difference,
    DrafterProof,
    ExactnessEvidence,
    ProfitEvidence,
    ProfitPoint,
    Ratio,
)
from serve_app.gating.keys import ChipKey, DrafterKey, ExactnessKey, ProfitKey
from serve_app.gating.records import (
    ExactnessRecord,
    Forced,
    Measured,
    ProfitRecord,
    Reason,
    Setting,
    Target,
    Verdict,
)

MEASURED = Measured(at=datetime(2026, 11, 29, 12, 30, tzinfo=UTC), outrider="0.1.0")
KEY = ExactnessKey(
    chip=ChipKey(kind="AMD EPYC (family 25, model 17, stepping 1)", features=("avx2", "avx512f"), threads=2),
    model="ab" * 32,
    architecture="llama",
    precision="int8",
    kernels="native",
    page_size=64,
    context=2048,
    cache_pages=256,
    ladder=(8, 16, 32, 64, 128),
    slots=8,
    draft_k=7,
    draft_rows=8,
    jax="0.12.0",
    jaxlib="0.12.0",
    programs="cd" * 32,
)
PROOF = DrafterProof(tokens=4096, mismatches=0, drafts=2000, accepted=700)
WRONG = DrafterProof(
    tokens=4096,
    mismatches=3,
    drafts=2000,
    accepted=702,
    first=Difference(prompt="mt_bench-81", position=17, wanted=338, got=None),
)


def key(**parts: Any) -> ExactnessKey:
    return msgspec.structs.replace(KEY, **parts)


def profit_key(kind: str = "ngram", *, program: ExactnessKey = KEY, k_max: int = 7) -> ProfitKey:
    return ProfitKey(program=program, drafter=DrafterKey(kind=kind, fingerprint="ef" * 32), k_max=k_max)


def exactness(program: ExactnessKey = KEY, *, is_exact: bool = True) -> ExactnessRecord:
    proofs = {"ngram": PROOF, "random": PROOF, "oracle": PROOF if is_exact else WRONG}
    return ExactnessRecord(
        key=program,
        verdict=Verdict.PASS if is_exact else Verdict.FAIL,
        reason=None if is_exact else Reason.INEXACT,
        evidence=ExactnessEvidence(drafters=proofs, rungs=(8, 16, 32), refused={64: "hidden row 3 differs"}),
        measured=MEASURED,
    )


def point(active: int, ratio: float, *, k: int = 7) -> ProfitPoint:
    return ProfitPoint(
        active=active,
        k=k,
        plain_tokens_s=40.0 * active,
        speculative_tokens_s=40.0 * active * ratio,
        ratio=Ratio(median=ratio, min=ratio * 0.9, max=ratio * 1.1),
        pairs=5,
        rounds=120,
        acceptance=(0.7, 0.5, 0.25),
        plain_window_ms=20.0,
        window_ms=26.5,
        drafter_ms=0.4,
        by_k={3: ratio * 0.95, k: ratio},
    )


def profit(pairing: ProfitKey | None = None, *, ratios: dict[int, float] | None = None, k: int = 7) -> ProfitRecord:
    """A record with these ratios by active slots; it passes where one of them is above 1."""
    ratios = {1: 1.6, 2: 1.3, 4: 0.9} if ratios is None else ratios
    pays = any(ratio > 1 for ratio in ratios.values())
    return ProfitRecord(
        key=pairing or profit_key(),
        verdict=Verdict.PASS if pays else Verdict.FAIL,
        reason=None if pays else Reason.NOT_FASTER,
        evidence=ProfitEvidence(points=tuple(point(active, ratio, k=k) for active, ratio in ratios.items())),
        measured=MEASURED,
    )


def forced(setting: Setting = Setting.OFF, *, hour: int = 13, **target: str) -> Forced:
    return Forced(
        target=Target(**target),
        setting=setting,
        by="alice",
        at=datetime(2026, 11, 29, hour, tzinfo=UTC),
        why="the chip is hot",
    )
