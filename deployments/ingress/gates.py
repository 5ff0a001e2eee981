"""The page of the gates: what each replica of the verifier obeys and why, as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from deployments.messages.gates import GateReport


def gates_page(reports: Sequence[GateReport], /) -> dict[str, Any]:
    """All replicas, in the order of their names."""
    return {"object": "list", "data": [_replica(report) for report in sorted(reports, key=lambda each: each.replica)]}


def _replica(report: GateReport) -> dict[str, Any]:
    rule: dict[str, Any] = msgspec.to_builtins(report.rule)
    # Candidates show it, with the record it is from.
    del rule["expected"]
    return {
        "object": "gates",
        "schema": report.schema,
        "replica": report.replica,
        **rule,
        "candidates": list(report.candidates),
        "store": report.store,
        "live": msgspec.to_builtins(report.live),
        "gains_lost": report.gains_lost,
    }
