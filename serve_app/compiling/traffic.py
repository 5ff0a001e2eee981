"""What a compiled program moves between HBM and VMEM, read off its text.

XLA's cost analysis counts a weight again for each copy of it, although VMEM is not HBM: here every instruction counts
the operands and results that lie in HBM, and the copy into VMEM counts once, its consumer not at all. Slices, gathers,
scatters and updates count what they touch. Kernels (Mosaic calls) are opaque, and are listed for others to estimate.

Assumes that an instruction reads an operand once, that updates are in place where their target is not made by the same
fusion, and that of a conditional's branches the cheapest runs: the one for requests that ask nothing special. Loops
run as often as the program's constants say; where the data say it, the caller does. Knows no chips and no rates.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from serve_app.compiling.arithmetic import Product, products_of
from serve_app.compiling.collectives import Collective, collective_of
from serve_app.compiling.hlo import Buffer, Computation, Instruction, Module
from serve_app.compiling.touch import SLICE_STARTS, Touch
from serve_app.compiling.trips import Times, known_trips

type Sources = tuple[str, ...]
type Turns = Callable[[Sources, int], Times]

_KERNEL = 'custom_call_target="tpu_custom_call"'
_NOTHING = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "after-all", "add-dependency"}
    | {"opt-barrier", "partition-id", "replica-id"}
)
# Custom calls that name memory instead of touching it.
_NAMING = ("ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding")


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What one instruction moves, each time it runs.

    Attributes:
        origin: the operation it comes from, as JAX names it.
        sources: the files of the Python frames it comes from, innermost first.
        times: how often it runs in one run of the program; for what not every turn of a loop does, its share of them.
    """

    name: str
    opcode: str
    origin: str
    sources: Sources
    read: int
    written: int
    times: Times = 1

    @property
    def total(self) -> int:
        """Bytes in one run of the program."""
        return int((self.read + self.written) * self.times)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A call of a kernel, which nobody here can look into."""

    name: str
    origin: str
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    times: Times = 1


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop whose turns depend on the data; `turns` is how many were assumed, `total` what one of them moves."""

    name: str
    origin: str
    sources: Sources
    turns: Times
    total: int


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All that one run of a program does outside its kernels.

    Attributes:
        loops: those of which only the data know how often they run.
    """

    movements: tuple[Movement, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    loops: tuple[Loop, ...] = ()
    products: tuple[Product, ...] = ()
    collectives: tuple[Collective, ...] = ()

    @property
    def read(self) -> int:
        return sum(int(one.read * one.times) for one in self.movements)

    @property
    def written(self) -> int:
        return sum(int(one.written * one.times) for one in self.movements)

    @property
    def total(self) -> int:
        return self.read + self.written

    def largest(self, count: int, /) -> tuple[Movement, ...]:
        """The instructions that move most."""
        return tuple(sorted(self.movements, key=lambda one: -one.total)[:count])

    def times(self, count: Times, /) -> "Traffic":
        """As often as this."""
        return Traffic(
            movements=tuple(replace(one, times=one.times * count) for one in self.movements),
            kernels=tuple(replace(one, times=one.times * count) for one in self.kernels),
            loops=self.loops,
            products=tuple(replace(one, times=one.times * count) for one in self.products),
            collectives=tuple(replace(one, times=one.times * count) for one in self.collectives),
        )


def traffic_of(module: Module, /, *, turns: Turns = lambda sources, depth: 1) -> Traffic:
    """What one run of the program moves.

    Args:
        turns: how often a loop runs when only the data say so, by the source files it comes from and how many such
            loops it is in.
    """
    return joined(traffic for _, traffic in scheduled(module, turns=turns))


def scheduled(module: Module, /, *, turns: Turns = lambda sources, depth: 1) -> Iterator[tuple[Instruction, Traffic]]:
    """Each instruction of the program and what it moves, in the order they run; arguments as in `traffic_of`."""
    return _Reader(module, turns=turns).each(module.entry, depth=0)


class _Reader:
    def __init__(self, module: Module, *, turns: Turns) -> None:
        self._module = module
        self._turns = turns
        self._touch = Touch(module)

    def of(self, computation: Computation, *, depth: int) -> Traffic:
        return joined(traffic for _, traffic in self.each(computation, depth=depth))

    def each(self, computation: Computation, *, depth: int) -> Iterator[tuple[Instruction, Traffic]]:
        skipped = _prefetched_again(computation)
        for one in computation.instructions.values():
            if one.name not in skipped:
                yield one, self._one(computation, one, depth=depth)

    def _one(self, computation: Computation, one: Instruction, *, depth: int) -> Traffic:
        if one.opcode in _NOTHING or one.opcode.endswith(("-done", "-update")):
            return Traffic()
        own = [self._module.computations[name] for name in one.called]
        match one.opcode:
            case "while":
                return self._loop(computation, one, depth=depth)
            case "conditional":
                return min((self.of(branch, depth=depth) for branch in own), key=lambda traffic: traffic.total)
            case "call" | "call-start" | "async-start":
                return joined(self.of(called, depth=depth) for called in own)
            case "custom-call" if _KERNEL in one.attributes:
                return Traffic(kernels=(_kernel(computation, one),))
            case "custom-call" if any(f'"{name}' in one.attributes for name in _NAMING):
                return Traffic()
        return self._plain(computation, one)

    def _plain(self, computation: Computation, one: Instruction) -> Traffic:
        read, written = self._moved(computation, one)
        movement = Movement(
            name=one.name,
            opcode=one.opcode,
            origin=one.origin,
            sources=self._module.sources(one),
            read=read,
            written=written,
        )
        exchange = collective_of(one, module=self._module, computation=computation)
        return Traffic(
            movements=(movement,) if movement.total else (),
            products=tuple(products_of(one, module=self._module, computation=computation)),
            collectives=() if exchange is None else (exchange,),
        )

    def _loop(self, computation: Computation, one: Instruction, *, depth: int) -> Traffic:
        own = [self._module.computations[name] for name in one.called]
        trips = known_trips(one, module=self._module, computation=computation)
        if trips is not None:
            return joined(self.of(called, depth=depth) for called in own).times(trips)
        sources = self._module.sources(one)
        turn = joined(self.of(called, depth=depth + 1) for called in own)
        turns = self._turns(sources, depth)
        unknown = Loop(name=one.name, origin=one.origin, sources=sources, turns=turns, total=turn.total)
        run = turn.times(turns)
        return replace(run, loops=(*run.loops, unknown))

    def _moved(self, computation: Computation, one: Instruction) -> tuple[int, int]:
        taken = dict.fromkeys(computation.operands(one))
        read = sum(min(self._touch.use(value, user=one).read, value.size) for value in taken if value.hbm)
        if one.opcode == "copy-start":
            return read, one.buffers[0].hbm
        if one.opcode in SLICE_STARTS:
            return read, one.buffers[len(one.operands)].hbm
        if one.opcode.endswith("-start"):
            return read, max((buffer.hbm for buffer in one.buffers), default=0)
        return read, self._touch.written(one, computation=computation)


def _prefetched_again(computation: Computation) -> frozenset[str]:
    """Copies that stand in for one made at the end of the program's last run: its next run does without them."""
    copies = [one for one in computation.instructions.values() if one.opcode == "copy-start"]
    at_start = {one.operands: one.name for one in copies if "cross_program_prefetch_index=" in one.attributes}
    again = {one.operands for one in copies if one.operands in at_start and one.name != at_start[one.operands]}
    return frozenset(name for operands, name in at_start.items() if operands in again)


def _kernel(computation: Computation, one: Instruction) -> Kernel:
    name = re.search(r'kernel_name["\\]*[:=]\s*["\\]*([\w.]+)', one.attributes)
    return Kernel(
        name=one.name if name is None else name[1],
        origin=one.origin,
        operands=tuple(buffer for taken in computation.operands(one) for buffer in taken.buffers),
        results=one.buffers,
    )


def joined(given: Iterable[Traffic], /) -> Traffic:
    """All of it as one."""
    parts = list(given)
    return Traffic(
        movements=tuple(one for part in parts for one in part.movements),
        kernels=tuple(one for part in parts for one in part.kernels),
        loops=tuple(one for part in parts for one in part.loops),
        products=tuple(one for part in parts for one in part.products),
        collectives=tuple(one for part in parts for one in part.collectives),
    )
