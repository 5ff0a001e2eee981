"""How often a loop of a compiled program runs, where the program itself says so.

Either XLA noted it, or the loop counts up by one from a constant to a constant. Whatever depends on data is not known.
"""

import re
from fractions import Fraction

from serve_app.compiling.hlo import Computation, Instruction, Module

type Times = int | Fraction
"""How often something runs: a share where it is not in every turn of a loop."""

_NOTED = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SAME = frozenset({"bitcast", "reshape", "copy", "convert"})


def known_trips(loop: Instruction, /, *, module: Module, computation: Computation) -> int | None:
    """How often `loop`, an instruction of `computation`, runs; `None` where only the data say."""
    noted = _NOTED.search(loop.attributes)
    if noted is not None:
        return int(noted[1])
    condition = module.computations[loop.attribute("condition").lstrip("%")]  # type: ignore[union-attr]
    body = module.computations[loop.attribute("body").lstrip("%")]  # type: ignore[union-attr]
    test = condition.root
    if test.opcode != "compare" or test.attribute("direction") != "LT":
        return None
    counter, bound = condition.operands(test)
    start = computation.operands(loop)[0]
    first = _number(computation, start, place=_place(condition, counter))
    last = _constant(bound)
    if last is None and (place := _place(condition, bound)) is not None and _is_kept(body, place=place):
        last = _number(computation, start, place=place)
    return None if first is None or last is None else max(last - first, 0)


def _number(computation: Computation, start: Instruction, *, place: int | None) -> int | None:
    """The constant that stands at a place of the tuple a loop starts with."""
    if place is None or start.opcode != "tuple":
        return None
    value = computation.operands(start)[place]
    while value.opcode in _SAME:
        value = computation.operands(value)[0]
    return _constant(value)


def _constant(value: Instruction) -> int | None:
    return int(value.literal) if value.opcode == "constant" and value.literal.lstrip("-").isdecimal() else None


def _place(computation: Computation, value: Instruction) -> int | None:
    """Where in the loop's tuple a value comes from."""
    while value.opcode in _SAME:
        value = computation.operands(value)[0]
    index = value.attribute("index") if value.opcode == "get-tuple-element" else None
    return None if index is None else int(index)


def _is_kept(body: Computation, *, place: int) -> bool:
    """Whether every turn hands on what it was given."""
    made = body.root
    return made.opcode == "tuple" and _place(body, body.operands(made)[place]) == place
