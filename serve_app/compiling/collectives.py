"""What a compiled program's devices say to each other: sums, maxima, gathers. Counts bytes; knows no rates.

Bytes on the wire are those of a ring (Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms").
"""

import math
import re
from dataclasses import dataclass

from serve_app.compiling.hlo import Computation, Instruction, Module
from serve_app.compiling.trips import Times

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_SHAPED = re.compile(r"\[(\d+),(\d+)\]")
_LISTED = re.compile(r"\{\{([\d,]+)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min"}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One exchange between devices.

    Attributes:
        reduction: `sum`, `max` or `min`; empty where nothing is reduced.
        size: bytes of what each device has in the end.
        group: how many devices take part.
    """

    kind: str
    reduction: str
    size: int
    group: int
    times: Times = 1

    @property
    def wire(self) -> float:
        """Bytes that each device sends, in one run of the program."""
        others = self.group - 1
        share = {"all-reduce": 2 * others / self.group, "reduce-scatter": float(others), "collective-permute": 1.0}
        return self.size * share.get(self.kind, others / self.group) * float(self.times)


def collective_of(instruction: Instruction, /, *, module: Module, computation: Computation) -> Collective | None:
    """The exchange that an instruction begins; `None` for all others."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in _KINDS:
        return None
    given = sum(taken.size for taken in computation.operands(instruction))
    # One that begins also lists what it was given.
    made = instruction.size - given if instruction.opcode == "all-gather-start" else instruction.size
    return Collective(
        kind=kind,
        reduction=_reduction(module, instruction),
        size=given if kind in ("all-reduce", "collective-permute") else made,
        group=_group(instruction),
    )


def _reduction(module: Module, instruction: Instruction) -> str:
    name = instruction.attribute("to_apply")
    if name is None:
        return ""
    return _REDUCTIONS.get(module.computations[name.lstrip("%")].root.opcode, "other")


def _group(instruction: Instruction) -> int:
    groups = instruction.attribute("replica_groups") or ""
    if groups.startswith("mesh["):
        sizes, _, along = groups.partition("]")
        return math.prod(int(size) for name, size in _AXIS.findall(sizes) if f"'{name}'" in along)
    shaped, listed = _SHAPED.match(groups), _LISTED.match(groups)
    if shaped is not None:
        return int(shaped[2])
    return 2 if listed is None else len(listed[1].split(","))
