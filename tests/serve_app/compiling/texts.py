"""Texts as XLA prints them, cut down to what a test is about; in tests/data/hlo, since their lines are long."""

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "data" / "hlo"

HEADER = "HloModule jit_f, is_scheduled=true, entry_computation_layout={()->()}"

PREFETCH = (_FOLDER / "prefetch.txt").read_text()
"""A weight that is fetched to VMEM, and fetched again at the end, for the next run."""

SCATTER = (_FOLDER / "scatter.txt").read_text()
"""Eight rows written into a cache in place, and an argument that is only handed on."""

LOOPS = (_FOLDER / "loops.txt").read_text()
"""A loop whose length the data say, and within it one that runs 24 times."""

EXCHANGES = (_FOLDER / "exchanges.txt").read_text()
"""A sum and a maximum over four devices, and a gather."""
