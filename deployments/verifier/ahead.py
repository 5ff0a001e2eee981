"""A verifier's programs compiled for devices that need not be here, and what the compiler says of each.

Runs nothing. A program that cannot be compiled is a sentence, not an exception: the others are still worth knowing.
"""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

from deployments.lm.topologies import first_line, without_cache
from deployments.verifier.blueprint import Blueprint, Lowered, ProgramKey
from deployments.verifier.compiling import roomy_threads, unknown_options
from deployments.verifier.window import Rung

type Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ProgramMemory:
    """Bytes on each device while a program runs.

    Attributes:
        arguments: weights, cache and window, whoever holds them.
        temporaries: what it needs beside them while it runs.
        aliased: of the outputs, what lies where an argument was: the cache, if donating it worked.
        code: of the program itself.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    code: int

    @property
    def total(self) -> int:
        """What has to fit."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """One program, compiled.

    Attributes:
        flops: of one run on each device, as XLA counts them; it does not see into kernels.
        hlo_text: optimised and scheduled, with layouts and memory spaces.
        seconds: that compiling it took.
    """

    memory: ProgramMemory
    flops: float
    hlo_text: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FailedProgram:
    """One that the compiler refused.

    Attributes:
        reason: one sentence.
    """

    reason: str
    seconds: float


def compile_for(
    blueprint: Blueprint, /, *, progress: Progress = lambda text: None, workers: int | None = None
) -> Mapping[ProgramKey, CompiledProgram | FailedProgram]:
    """Every program of `blueprint`, compiled for the devices of its mesh: bodies by rung, draws by size, and
    calls of several rounds by theirs.

    Args:
        progress: is told of each program that is done, in the order they are.
        workers: how many are compiled at once; `None` takes one per processor.
    """
    ladder = blueprint.sizes.ladder
    jobs: dict[ProgramKey, Callable[[], Lowered]] = {rung: partial(blueprint.body, rung) for rung in ladder.rungs}
    jobs |= {size: partial(blueprint.emit, size) for size in ladder.emits}
    if blueprint.sizes.rounds is not None:
        jobs |= {size: partial(blueprint.rounds, size) for size in blueprint.sizes.rounds.sizes}
    done: dict[ProgramKey, CompiledProgram | FailedProgram] = {}
    for option in sorted(unknown_options(blueprint.mesh)):
        progress(f"this compiler has no option {option}; programs go without it")
    with without_cache(), roomy_threads(workers or os.cpu_count() or 1) as pool:
        waiting = {pool.submit(_compiled, lower): key for key, lower in jobs.items()}
        for number, future in enumerate(as_completed(waiting), start=1):
            key = waiting[future]
            done[key] = future.result()
            progress(f"{_said(key, done[key])} ({number} of {len(jobs)})")
    return {key: done[key] for key in jobs}


def _compiled(lower: Callable[[], Lowered]) -> CompiledProgram | FailedProgram:
    started = time.perf_counter()
    try:
        program = lower().compile()
    # Whatever it is: the compiler's own errors have no common base, and Python's come of shapes it cannot take.
    except Exception as error:
        return FailedProgram(reason=first_line(error), seconds=time.perf_counter() - started)
    seconds = time.perf_counter() - started
    counted: Any = program.memory_analysis()
    return CompiledProgram(
        memory=ProgramMemory(
            arguments=counted.argument_size_in_bytes,
            outputs=counted.output_size_in_bytes,
            temporaries=counted.temp_size_in_bytes,
            aliased=counted.alias_size_in_bytes,
            code=counted.generated_code_size_in_bytes,
        ),
        flops=float((program.cost_analysis() or {}).get("flops", 0.0)),
        hlo_text=program.as_text() or "",
        seconds=seconds,
    )


def _said(key: ProgramKey, program: CompiledProgram | FailedProgram) -> str:
    match key:
        case Rung():
            name = f"layers of {key.rows} rows"
        case int():
            name = f"draw of {key} rows"
        case _:
            name = f"{key.most} rounds of {key.rung.rows} rows"
    if isinstance(program, FailedProgram):
        return f"{name} cannot be compiled: {program.reason}"
    return f"{name} compiled in {program.seconds:.1f} s"
