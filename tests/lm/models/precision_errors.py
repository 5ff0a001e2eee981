"""How far each golden network's logits are from its peers' in each precision; prints rows of a Markdown table.

`python -m tests.lm.models.precision_errors qwen2 qwen3`; without names, all of `test_golden.TABLE`.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from tests.lm.models.test_golden import TABLE, Golden
from tests.verifier.forcing import forced_logits, network, programs_for

GOLDENS = Path(__file__).parents[2] / "data" / "golden"
COLUMNS = (
    (Precision.F32, Kernels.XLA),
    (Precision.BF16, Kernels.XLA),
    (Precision.INT8, Kernels.XLA),
    (Precision.INT8, Kernels.NATIVE),
    (Precision.INT8_PLAIN, Kernels.XLA),
    (Precision.W8A16, Kernels.XLA),
)


class Apart(NamedTuple):
    """Of logits from their reference's: mean and largest difference, and how often the best token is the same."""

    mean: float
    most: float
    agreed: float


def apart(golden: Golden, *, precision: Precision, kernels: Kernels) -> Apart:
    """Over every position of the three prompts."""
    folder = GOLDENS / golden.folder
    model = network(str(folder / golden.gguf), precision=precision, kernels=kernels)
    programs = programs_for(model, precision=precision, rows=64, context=192, page_size=32)
    with np.load(folder / "ref.npz") as stored:
        wanted = [stored[f"logits_{number}"] for number in range(3)]
        found = [forced_logits(programs, stored[f"prompt_{number}"].tolist()) for number in range(3)]
    left, right = np.concatenate(found), np.concatenate(wanted)
    difference = np.abs(left - right)
    agreed = np.mean(left.argmax(axis=-1) == right.argmax(axis=-1))
    return Apart(mean=float(difference.mean()), most=float(difference.max()), agreed=float(agreed))


def main(names: list[str]) -> None:
    for golden in TABLE:
        if names and golden.folder not in names:
            continue
        exact, *others = (apart(golden, precision=precision, kernels=kernels) for precision, kernels in COLUMNS)
        cells = [f"{exact.most:.1e}", *(f"{one.mean:.2f}, {100 * one.agreed:.0f} %" for one in others)]
        print(f"| `{golden.folder}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
