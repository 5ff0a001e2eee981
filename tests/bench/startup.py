"""Where a verifier's start goes: seconds and peak memory of each step, from an empty process to ready.

`python -m tests.bench.startup MODEL [--fresh]`; with `--fresh` nothing compiled earlier is used. Each run has a process
of its own, since a peak never comes down.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

_KIB = 1024
_STEPS = {
    "reading": "importing JAX, opening the file",
    "kernels": "finding native kernels",
    "weights": "reading and converting weights",
    "compiled": "compiling programs, or reading them from the cache",
    "memory": "compiling programs, or reading them from the cache",
    "proving": "proving that all windows compute the same bits",
    "ready": "proving that all windows compute the same bits",
}


@dataclass(kw_only=True)
class Log:
    """What each step took.

    Attributes:
        seconds: by step, in order.
        peaks: resident memory at its highest when the step was done, in MiB.
    """

    began: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def note(self, text: str, /) -> None:
        """Called as each step ends."""
        step = _STEPS.get(text.split()[0].rstrip(":"), text)
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self.began
        self.peaks[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB
        self.began = now


def measure(model: str, *, cache: str) -> None:
    """Loads a model in this process and prints the table."""
    log = Log()
    from deployments.verifier.loading import load_model
    from deployments.verifier.sizing import ModelSettings

    loaded = load_model(
        ModelSettings(model_path=model, draft_k=7, draft_rows=8, compile_cache=cache), progress=log.note
    )
    table = Table("step", "seconds", "peak MiB", title=f"start of {loaded.name}, {loaded.settings.precision}")
    for step, seconds in log.seconds.items():
        table.add_row(step, f"{seconds:.1f}", f"{log.peaks[step]:.0f}")
    table.add_row("together", f"{sum(log.seconds.values()):.1f}", f"{max(log.peaks.values()):.0f}")
    Console(width=110).print(table)


def main() -> None:
    """Starts the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--fresh", action="store_true", help="compile everything anew")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.cache:
        measure(chosen.model, cache=chosen.cache)
        return
    kept = str(Path.home() / ".cache" / "outrider" / "programs")
    with tempfile.TemporaryDirectory() as empty:
        cache = empty if chosen.fresh else kept
        command = [sys.executable, "-m", "tests.bench.startup", chosen.model, "--cache", cache]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
