"""All that `outrider compile` says of one model on one slice, as data."""

from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from deployments.verifier.ahead import CompiledProgram, FailedProgram
from deployments.verifier.blueprint import ProgramKey
from deployments.verifier.calls import RoundsSize
from deployments.verifier.window import Rung
from serve_app.compiling.blueprints import Subject
from serve_app.compiling.checks import Check, checks_of
from serve_app.compiling.estimate import Speed, Window
from serve_app.compiling.memory import Fit, compiled, fit_of, planned, would_hold
from serve_app.compiling.windows import Programs, Windows

_PACKAGES = ("jax", "jaxlib", "libtpu")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        refusal: why it could not be compiled; `None` if it could.
        temporaries, aliased, code: bytes on each device.
    """

    name: str
    refusal: str | None
    seconds: float
    temporaries: int = 0
    aliased: int = 0
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One window, on each device. An estimate.

    Attributes:
        slots: that have rows in it,
        rows_each: and so many each, of which `drawing` in all emit a token.
        weights: bytes that have to be read.
        moved: bytes of HBM outside attention and recurrent states.
        int8, bf16: operations.
        sums, maxima, exchanges: between devices.
        bound: what takes longest: HBM, arithmetic or exchange.
    """

    rows: int
    slots: int
    rows_each: int
    drawing: int
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
    bound: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """One model on one slice.

    Attributes:
        position: where in its context every slot is taken to be, for what attention reads.
        would_hold: slices with room for these weights and this cache.
        guessed: source files of loops whose length nobody knows, counted once.
    """

    model: str
    architecture: str
    chip: str
    devices: int
    precision: str
    slots: int
    context: int
    page_size: int
    draft_k: int
    position: int
    packages: dict[str, str]
    programs: tuple[Program, ...]
    fit: Fit
    would_hold: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    speeds: tuple[Speed, ...]
    checks: tuple[Check, ...]
    guessed: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether it fits and everything was compiled; not whether all checks hold."""
        return self.fit.fits and bool(self.programs) and all(one.refusal is None for one in self.programs)

    def to_json(self) -> bytes:
        """All of it, indented."""
        plain = msgspec.to_builtins(self)
        plain["fit"] |= {"needed": self.fit.needed, "fits": self.fit.fits}
        plain["checks"] = [msgspec.to_builtins(one) | {"holds": one.holds} for one in self.checks]
        return msgspec.json.format(msgspec.json.encode(plain | {"estimate": True}), indent=2)


def report_of(subject: Subject, /, *, programs: Programs) -> Report:
    """What can be told from programs; without any, whether weights and cache alone fit."""
    sizes, wanted = subject.blueprint.sizes, subject.wanted
    position = wanted.context // 2
    windows = Windows(programs, sizes=sizes, on=subject.on, position=position, draft_k=wanted.draft_k)
    own = {key: one for key, one in programs.items() if isinstance(one, CompiledProgram)}
    resident = compiled(windows.modules.values(), plan=planned(subject.blueprint))
    by_rung = {rung: window for rung in sizes.ladder.rungs if (window := windows.of_rung(rung)) is not None}
    return Report(
        model=subject.name,
        architecture=subject.architecture,
        chip=subject.on.name,
        devices=subject.on.devices,
        precision=wanted.precision.value,
        slots=wanted.slots,
        context=wanted.context,
        page_size=sizes.shape.page_size,
        draft_k=wanted.draft_k,
        position=position,
        packages={name: version(name) for name in _PACKAGES},
        programs=tuple(_program(key, one) for key, one in programs.items()),
        fit=fit_of(resident, programs=own.values(), sizes=sizes, on=subject.on, longest=subject.longest),
        would_hold=would_hold(resident, on=subject.on, splits=subject.splits),
        estimates=tuple(map(_estimate, by_rung.values())),
        speeds=windows.speeds(),
        checks=checks_of(
            by_rung,
            bodies={key: one for key, one in own.items() if isinstance(key, Rung)},
            modules={key: one for key, one in windows.modules.items() if isinstance(key, Rung)},
            resident=resident,
            layers=subject.layers,
        ),
        guessed=tuple(sorted({name for one in by_rung.values() for name in one.body.guessed + one.emit.guessed})),
    )


def fits_at_all(subject: Subject, /) -> bool:
    """Whether weights and cache leave room for programs, before any is compiled."""
    sizes = subject.blueprint.sizes
    return fit_of(planned(subject.blueprint), programs=(), sizes=sizes, on=subject.on, longest=subject.longest).fits


def _program(key: ProgramKey, one: CompiledProgram | FailedProgram) -> Program:
    match key:
        case Rung():
            name = f"layers, {key.rows} rows"
        case RoundsSize():
            name = f"{key.most} rounds, {key.rung.rows} rows"
        case _:
            name = f"draw, {key} rows"
    if isinstance(one, FailedProgram):
        return Program(name=name, refusal=one.reason, seconds=one.seconds)
    memory = one.memory
    return Program(
        name=name,
        refusal=None,
        seconds=one.seconds,
        temporaries=memory.temporaries,
        aliased=memory.aliased,
        code=memory.code,
    )


def _estimate(window: Window) -> Estimate:
    body, emit = window.body, window.emit
    return Estimate(
        rows=window.rung.rows,
        slots=window.load.slots,
        rows_each=window.load.rows,
        drawing=window.emits,
        weights=window.weights,
        moved=window.moved,
        attention=body.attention + emit.attention,
        states=body.states,
        int8=body.int8 + emit.int8,
        bf16=body.bf16 + emit.bf16,
        wire=body.wire + emit.wire,
        sums=body.sums + emit.sums,
        maxima=body.maxima + emit.maxima,
        exchanges=body.exchanges + emit.exchanges,
        bound=window.time.bound,
        seconds=window.time.seconds,
    )
