"""How much of a value an instruction really reads or makes, looking into fusions.

Slices and gathers read what they take, updates and scatters write what they put in where their target was there before.
"""

from dataclasses import dataclass

from serve_app.compiling.hlo import Computation, Instruction, Module

SLICE_STARTS = frozenset({"slice-start", "dynamic-slice-start"})
"""Slices that are copied while others compute."""

_SAME = frozenset({"bitcast", "reshape", "opt-barrier", "get-tuple-element", "tuple"})
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Bytes of a value that are read, and whether the value is handed on as (a part of) a result."""

    read: int
    escapes: bool


class Touch:
    """How much of a value is really read or made, looking into fusions."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def read(self, value: Instruction, /, *, computation: Computation) -> Seen:
        """By all who take the value, and by those who are handed it on."""
        escapes = value.name == computation.root.name
        total = 0
        for user in computation.users[value.name]:
            use = self.use(value, user=user)
            beyond = self.read(user, computation=computation) if use.escapes else Seen(read=0, escapes=False)
            total += use.read + beyond.read
            escapes = escapes or beyond.escapes
        return Seen(read=min(total, value.size), escapes=escapes)

    def use(self, value: Instruction, /, *, user: Instruction) -> Seen:
        """By one instruction that takes the value; it escapes if the instruction hands it on."""
        is_first = user.operands[0] == value.name
        if user.opcode in _SAME:
            return Seen(read=0, escapes=True)
        if user.opcode in _UPDATES and is_first:
            return Seen(read=0, escapes=True)
        if user.opcode in _SLICES and is_first:
            return Seen(read=user.size, escapes=False)
        if user.opcode in SLICE_STARTS and is_first:
            return Seen(read=user.buffers[len(user.operands)].size, escapes=False)
        if user.opcode == "fusion":
            inside = self._module.computations[user.called[0]]
            places = [place for place, name in enumerate(user.operands) if name == value.name]
            seen = [self.read(inside.parameters[place], computation=inside) for place in places]
            return Seen(read=sum(one.read for one in seen), escapes=any(one.escapes for one in seen))
        return Seen(read=value.size, escapes=False)

    def written(self, one: Instruction, /, *, computation: Computation) -> int:
        """Bytes of HBM that the instruction writes."""
        if one.opcode in _UPDATES:
            return min(self._update(computation, one), one.hbm)
        if one.opcode != "fusion":
            return one.hbm
        inside = self._module.computations[one.called[0]]
        made = inside.operands(inside.root) if inside.root.opcode == "tuple" else (inside.root,)
        if len(made) != len(one.buffers):
            return one.hbm
        return sum(min(self._made(inside, part), leaf.hbm) for part, leaf in zip(made, one.buffers, strict=True))

    def _made(self, computation: Computation, value: Instruction) -> int:
        """Bytes that are new in a value; the rest was there before."""
        if value.opcode == "parameter":
            return 0
        if value.opcode in _SAME and len(value.operands) == 1:
            return self._made(computation, computation.operands(value)[0])
        if value.opcode in _UPDATES:
            return self._made(computation, computation.operands(value)[0]) + self._update(computation, value)
        if value.opcode == "fusion":
            inside = self._module.computations[value.called[0]]
            return self._made(inside, inside.root)
        return value.size

    def _update(self, computation: Computation, one: Instruction) -> int:
        taken = computation.operands(one)
        updates = taken[1:2] if one.opcode == "dynamic-update-slice" else taken[(len(taken) + 1) // 2 :]
        return sum(update.size for update in updates)
