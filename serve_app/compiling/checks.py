"""What a sound set of programs keeps to on any chip, as figures beside their limits, with the instructions to blame."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deployments.verifier.ahead import CompiledProgram
from deployments.verifier.window import Rung
from serve_app.compiling.estimate import Window
from serve_app.compiling.hlo import Module
from serve_app.compiling.memory import Resident
from serve_app.compiling.traffic import Movement

_TEMPORARIES, _TRAFFIC, _ROWS = 0.03, 1.1, 1.1
_SUMS, _MAXIMA = 2.0, 2.0
_NARROW, _WIDE = 8, 64
_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Check:
    """One of them.

    Attributes:
        blame: what to look at where it does not hold.
    """

    name: str
    value: float
    limit: float
    blame: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def checks_of(
    windows: Mapping[Rung, Window],
    /,
    *,
    bodies: Mapping[Rung, CompiledProgram],
    modules: Mapping[Rung, Module],
    resident: Resident,
    layers: int,
) -> tuple[Check, ...]:
    """All that the windows at hand can say."""
    found = list(_memory(bodies, modules=modules, resident=resident))
    narrow = next(iter(windows.values()), None)
    if narrow is not None:
        found.append(_traffic(narrow))
        found += _exchanges(narrow, layers=layers)
    wide = {rung.rows: window for rung, window in windows.items()}
    if _NARROW in wide and _WIDE in wide:
        slower = wide[_WIDE].time.seconds / wide[_NARROW].time.seconds
        found.append(Check(name="time of 64 rows / time of 8 rows", value=slower, limit=_ROWS))
    return tuple(found)


def _memory(
    bodies: Mapping[Rung, CompiledProgram], *, modules: Mapping[Rung, Module], resident: Resident
) -> Iterator[Check]:
    if not bodies:
        return
    rung, most = max(bodies.items(), key=lambda item: item[1].memory.temporaries)
    yield Check(
        name="temporaries / weights",
        value=most.memory.temporaries / resident.weights,
        limit=_TEMPORARIES,
        blame=(f"layers of {rung.rows} rows: {most.memory.temporaries} bytes",),
    )
    left = {rung: _unaliased(module) for rung, module in modules.items()}
    worst = max(left, key=lambda rung: len(left[rung]))
    yield Check(
        name="arrays of the cache that are not aliased", value=len(left[worst]), limit=0, blame=left[worst][:_NAMED]
    )


def _unaliased(module: Module) -> tuple[str, ...]:
    cache = (number for number, one in enumerate(module.entry.parameters) if one.origin.startswith("cache["))
    return tuple(module.entry.parameters[number].origin for number in cache if number not in module.aliased)


def _traffic(window: Window) -> Check:
    excess = sorted((*window.body.excess, *window.emit.excess), key=lambda one: -one.total)
    return Check(
        name=f"HBM outside attention / weights, {window.rung.rows} rows",
        value=window.moved / window.weights,
        limit=_TRAFFIC,
        blame=tuple(map(_said, excess[:_NAMED])),
    )


def _exchanges(window: Window, *, layers: int) -> Iterator[Check]:
    body = window.body
    if not body.wire:
        return
    # One more each: the embedding's rows are summed before the first layer.
    yield Check(name="sums over devices / layer", value=body.sums / layers, limit=_SUMS + 1 / layers)
    yield Check(name="maxima over devices / layer", value=body.maxima / layers, limit=_MAXIMA + 1 / layers)
    yield Check(name="other exchanges of the layers", value=body.exchanges, limit=0)


def _said(one: Movement) -> str:
    where = one.origin or "put in by the compiler"
    times = f" x {one.times}" if one.times > 1 else ""
    return f"{one.name} ({where}): {one.read} bytes read, {one.written} written{times}"
