"""Parts of a report, made without a compiler."""

from typing import Any

from deployments.verifier.window import Rung
from serve_app.compiling.chips import slice_named
from serve_app.compiling.estimate import Window, time_of
from serve_app.compiling.memory import Fit, Resident
from serve_app.compiling.report import Estimate, Program, Report
from serve_app.compiling.schedule import Step
from serve_app.compiling.work import Load, Work

GIB = 2**30


def work(**values: Any) -> Work:
    """Eight billion bytes of weights, read once; exchanges come when nothing is under way, unless `steps` say more."""
    plain: dict[str, Any] = {
        **dict.fromkeys(("attention", "states", "int8", "bf16", "wire", "sums", "maxima", "exchanges"), 0),
        "weights": 8 * 10**9,
        "moved": 8 * 10**9,
        "guessed": (),
        "excess": (),
    }
    given = plain | values
    moved = sum(given[part] for part in ("moved", "attention", "states"))
    return Work(**{"steps": (Step(moved=moved), Step(wire=given["wire"]))} | given)


def nothing() -> Work:
    return work(weights=0, moved=0)


def window(rows: int, *, body: Work, chip: str = "v6e-1") -> Window:
    """A window whose head costs nothing."""
    load = Load(slots=8, rows=rows // 8, position=1024)
    time = time_of(body, on=slice_named(chip))
    return Window(rung=Rung(rows=rows, tiles=8), emits=8, load=load, body=body, emit=nothing(), time=time)


def fit(**values: Any) -> Fit:
    plain: dict[str, Any] = {
        "usable": 30 * GIB,
        "reserve": GIB // 2,
        "resident": Resident(weights=8 * GIB, pages=2 * GIB, states=0),
        "temporaries": GIB // 10,
        "code": GIB // 100,
        "context": 20480,
        "slots": 80,
    }
    return Fit(**plain | values)


def report(**values: Any) -> Report:
    """A model that fits, with one program and one window."""
    plain: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "architecture": "llama",
        "chip": "v6e-1",
        "devices": 1,
        "precision": "int8",
        "slots": 8,
        "context": 2048,
        "page_size": 64,
        "draft_k": 7,
        "position": 1024,
        "packages": {"jax": "0.12"},
        "programs": (Program(name="layers, 8 rows", refusal=None, seconds=1.0),),
        "fit": fit(),
        "would_hold": ("v6e-1", "v6e-4"),
        "estimates": (estimate(8, seconds=0.005), estimate(64, seconds=0.0055)),
        "speeds": (),
        "checks": (),
        "guessed": (),
    }
    return Report(**plain | values)


def estimate(rows: int, *, seconds: float) -> Estimate:
    return Estimate(
        rows=rows,
        slots=8,
        rows_each=rows // 8,
        drawing=8,
        weights=8 * 10**9,
        moved=8 * 10**9,
        attention=10**8,
        states=0,
        int8=10**11,
        bf16=10**9,
        wire=0.0,
        sums=0,
        maxima=0,
        exchanges=0,
        bound="HBM",
        seconds=seconds,
    )
