"""Compiles lowered programs side by side. One that its compiler refuses stays behind as one that cannot be run."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

# XLA's passes go deeper than the 8 MiB a thread has.
_STACK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Unbuilt:
    """In the place of a program that did not compile; calling it says why."""

    reason: str

    def __call__(self, *_: Any) -> NoReturn:
        """Raises `RuntimeError`."""
        raise RuntimeError(self.reason)


def compile_all[Key](
    jobs: Mapping[Key, jax.stages.Lowered], /, *, progress: Callable[[str], None]
) -> dict[Key, jax.stages.Compiled | Unbuilt]:
    """Every program, compiled as many at once as there are cores."""
    done: dict[Key, jax.stages.Compiled | Unbuilt] = {}
    with _deep_stacks(), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        compiled = pool.map(_compiled, jobs.values())
        for number, (key, program) in enumerate(zip(jobs, compiled, strict=True), start=1):
            done[key] = program
            progress(f"compiled {number} of {len(jobs)} programs")
            if isinstance(program, Unbuilt):
                progress(f"{key}: {program.reason}")
    return done


def temporaries(program: jax.stages.Compiled | Unbuilt, /) -> int:
    """Bytes it takes beside what goes in and comes out, as its compiler counted them."""
    counted = None if isinstance(program, Unbuilt) else program.memory_analysis()
    return 0 if counted is None else int(counted.temp_size_in_bytes)


def _compiled(job: jax.stages.Lowered) -> jax.stages.Compiled | Unbuilt:
    try:
        return job.compile()
    # Whatever a compiler may say: others may do.
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        return Unbuilt(reason=f"it does not compile ({type(error).__name__}: {first})")


@contextmanager
def _deep_stacks() -> Iterator[None]:
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)
