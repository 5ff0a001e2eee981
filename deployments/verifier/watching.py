"""What operators see of a verifier's programs: how many rungs serve, and whether anything was compiled too late."""

import jax

from deployments.messages.metrics import Metrics
from deployments.verifier.probe import ProbeReport

_COMPILED = "/jax/core/compile/backend_compile_duration"


def watch_programs(report: ProbeReport, /, *, metrics: Metrics) -> None:
    """To be called once, when all is compiled: whatever XLA compiles from now on makes somebody wait."""
    metrics.set("ladder_rungs", value=len(report.ladder.rungs))

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event == _COMPILED:
            metrics.add("late_compilations")

    jax.monitoring.register_event_duration_secs_listener(count)
