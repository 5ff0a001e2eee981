"""What one run of a program takes from a device, for a window that is given: bytes by what they serve, operations, and
what devices say to each other.

Knows where this project's loops and kernels come from; knows no rates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import jax

from deployments.lm.attention import PAIR, TILE_ROWS
from deployments.lm.kernels.attention import pallas, steps
from deployments.lm.kernels.delta import pallas as delta
from serve_app.compiling.hlo import Computation, Instruction, Module
from serve_app.compiling.schedule import Step
from serve_app.compiling.touch import SLICE_STARTS, Touch
from serve_app.compiling.traffic import Kernel, Movement, Sources, Traffic, joined, scheduled
from serve_app.compiling.trips import Times

_ATTENTION = (
    "lm/attention.py",
    "kernels/attention/pallas.py",
    "kernels/attention/blocks.py",
    "kernels/attention/steps.py",
)
_STATES = ("lm/recurrence.py", "lm/delta.py", "kernels/delta/pallas.py")
_SAMPLING = "lm/sampling/"
_ATTENTION_KERNEL, _STATES_KERNEL = "outrider_attend", "outrider_delta"
_CACHE_TYPES = {"bf16": "bfloat16", "f32": "float32"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a window holds.

    Attributes:
        slots: that have rows in it,
        rows: and so many each: the newest token and its drafts.
        position: where each slot is in its context.
    """

    slots: int
    rows: int
    position: int

    @property
    def tiles(self) -> int:
        """Of four rows of one slot."""
        return self.slots * -(-self.rows // TILE_ROWS)

    @property
    def reads(self) -> int:
        """How often the attention kernel reads a slot's pages, all slots together: once for each pair of tiles."""
        return self.slots * -(-self.rows // (TILE_ROWS * steps.PAIR))

    def turns(self, sources: Sources, /, *, depth: int, page_size: int) -> Times:
        """How often a loop runs whose turns depend on the window; `traffic.Turns`."""
        origin = sources[0] if sources else ""
        if origin.endswith(_ATTENTION):
            return -(-self.tiles // PAIR) if depth == 0 else -(-self.position // page_size)
        if origin.endswith(_STATES):
            # Accepted drafts run again, then the newest token, then its drafts. One state of them all is written.
            run = 2 * self.rows - 1
            return (self.slots, run, Fraction(1, run))[min(depth, 2)]
        # Blocks of what only some requests ask for, of which there are none.
        return 0 if _SAMPLING in origin else 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one device, in one run.

    Attributes:
        weights: bytes of the weights that the program reads, each once: the least it can do with.
        moved: bytes of HBM read and written outside attention and recurrent states.
        attention: bytes of HBM that keys and values take, the kernel's by its own account.
        states: bytes of HBM that recurrent states take, the kernel's by its own account.
        wire: bytes that the device sends to others.
        sums, maxima, exchanges: how many there are, of integers or floats over all devices, and of other kinds.
        guessed: loops of unknown length, counted once.
        steps: what moves bytes, waits for them or exchanges, in the order in which it runs.
    """

    weights: int
    moved: int
    attention: int
    states: int
    int8: int
    bf16: int
    wire: float
    sums: int
    maxima: int
    exchanges: int
    guessed: tuple[str, ...]
    excess: tuple[Movement, ...]
    steps: tuple[Step, ...]

    @property
    def hbm(self) -> int:
        """All bytes."""
        return self.moved + self.attention + self.states


def work_of(module: Module, /, *, load: Load, page_size: int) -> Work:
    """Reads it off a program's text."""
    run = list(scheduled(module, turns=lambda sources, depth: load.turns(sources, depth=depth, page_size=page_size)))
    traffic = joined(one for _, one in run)
    parts: dict[str, list[Movement]] = {"attention": [], "states": [], "": []}
    for one in traffic.movements:
        parts[_part(one.sources)].append(one)
    kernels = [_attended(kernel, load=load) for kernel in _called(traffic, name=_ATTENTION_KERNEL)]
    recurred = sum(_recurred(kernel, load=load) for kernel in _called(traffic, name=_STATES_KERNEL))
    return Work(
        weights=weights_read(module),
        moved=_total(parts[""]),
        attention=_total(parts["attention"]) + sum(moved for moved, _ in kernels),
        states=_total(parts["states"]) + recurred,
        int8=sum(one.total for one in traffic.products if one.is_int8),
        bf16=sum(one.total for one in traffic.products if not one.is_int8) + sum(done for _, done in kernels),
        wire=sum(one.wire for one in traffic.collectives),
        sums=_exchanges(traffic, reduction="sum"),
        maxima=_exchanges(traffic, reduction="max"),
        exchanges=sum(int(one.times) for one in traffic.collectives if one.reduction not in ("sum", "max")),
        guessed=_guessed(traffic),
        excess=_excess(parts[""], module=module),
        steps=tuple(step for one, own in run if (step := _step(one, own, load=load)) is not None),
    )


def weights_read(module: Module, /) -> int:
    """Bytes of the weights that a program reads whole; of the others it takes rows."""
    touch = Touch(module)
    weights = (one for one in module.entry.parameters if one.origin.startswith("weights"))
    return sum(one.size for one in weights if touch.read(one, computation=module.entry).read >= one.size)


def _step(one: Instruction, traffic: Traffic, *, load: Load) -> Step | None:
    if one.opcode.endswith("-done"):
        return Step(awaits=one.operands[0])
    attended = sum(
        moved for moved, _ in (_attended(kernel, load=load) for kernel in _called(traffic, name=_ATTENTION_KERNEL))
    )
    recurred = sum(_recurred(kernel, load=load) for kernel in _called(traffic, name=_STATES_KERNEL))
    moved = traffic.total + attended + recurred
    wire = sum(exchange.wire for exchange in traffic.collectives)
    begins = one.name if one.opcode == "copy-start" or one.opcode in SLICE_STARTS else ""
    return Step(moved=moved, begins=begins, wire=wire) if moved or wire else None


def _part(sources: Sources) -> str:
    if any(source.endswith(_ATTENTION) for source in sources):
        return "attention"
    return "states" if sources and sources[0].endswith(_STATES) else ""


def _total(movements: list[Movement]) -> int:
    return sum(one.total for one in movements)


def _exchanges(traffic: Traffic, *, reduction: str) -> int:
    return sum(int(one.times) for one in traffic.collectives if one.reduction == reduction)


def _guessed(traffic: Traffic) -> tuple[str, ...]:
    known = (*_ATTENTION, *_STATES)
    found = (loop.sources[0] if loop.sources else loop.name for loop in traffic.loops)
    return tuple(sorted({name for name in found if not name.endswith(known) and _SAMPLING not in name}))


def _excess(movements: list[Movement], *, module: Module) -> tuple[Movement, ...]:
    """What writes to HBM, or reads there what was written before: all that is not a weight read once."""
    weights = [one for one in module.entry.parameters if one.origin.startswith("weights")]
    readers = {reader for weight in weights for reader in _readers(module.entry, weight)}
    beyond = (one for one in movements if one.written or one.name not in readers)
    return tuple(sorted(beyond, key=lambda one: -one.total)[:8])


def _readers(computation: Computation, value: Instruction) -> Iterator[str]:
    for user in computation.users[value.name]:
        yield user.name
        if user.opcode == "bitcast":
            yield from _readers(computation, user)


def _called(traffic: Traffic, *, name: str) -> Iterator[Kernel]:
    return (kernel for kernel in traffic.kernels if kernel.name.startswith(name))


def _attended(kernel: Kernel, *, load: Load) -> tuple[int, int]:
    """Bytes and operations of one call of the attention kernel; its last operands are the queries and the cache."""
    queries, cache = kernel.operands[-2:]
    tiles, _, asked, _ = queries.shape
    _, halves, kv_heads, page_size, depth = cache.shape
    pages = -(-load.position // page_size)
    held = jax.ShapeDtypeStruct(cache.shape, _CACHE_TYPES[cache.type])
    moved = pallas.hbm_bytes(min(load.reads, tiles) * pages, cache=held, tiles=tiles, queries=asked)
    # Scores, then sums: a multiplication and an addition for each value of keys and values.
    done = 2 * min(load.tiles, tiles) * pages * page_size * kv_heads * asked * halves * depth
    return int(moved * kernel.times), int(done * kernel.times)


def _recurred(kernel: Kernel, *, load: Load) -> int:
    """Bytes of one call of the recurrence's kernel: each slot's state is read and written once, whatever its rows."""
    matrices, history, pending, _, channels, gates = kernel.operands[-9:-3]
    rows = load.slots * load.rows
    moved = delta.hbm_bytes(
        delta.shape_of(matrices=matrices, history=history, gates=gates),
        reads=load.slots,
        writes=load.slots,
        # The last place is nobody's. What XLA has in VMEM it has brought there itself.
        again=min(rows - load.slots, pending.shape[0] - 1) if pending.hbm else 0,
        rows=rows if channels.hbm else 0,
        given=rows if kernel.results[-1].hbm else 0,
    )
    return int(moved * kernel.times)
