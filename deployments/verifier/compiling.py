"""How programs are compiled: with which options, side by side, and what stays behind of one that is refused."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from deployments.lm.topologies import without_cache

# XLA's passes recurse deeper than the 8 MiB that a thread is given.
_STACK_BYTES = 64 * 1024 * 1024
_TPU_OPTIONS = MappingProxyType(
    {
        # How much of a TPU core's own memory one instruction may take for itself. With more, which is the compiler's
        # choice where there are 128 MiB, wide results of 64 rows have no room beside a weight that is fetched ahead,
        # and go out to HBM and back: 1.14 times the weights' bytes for layers of Qwen3.8-27B on v6e, and 1.03 with it.
        "xla_tpu_scoped_vmem_limit_kib": "16384",
        # Weights are fetched ahead whole. Fetched in slices they take HBM beside the weights, more with every layer:
        # 5.5 percent of a device's share of eight layers of Llama-3.1-8B on eight v5e, and 2.5 whole. (1 would end the
        # process on a v5p.)
        "xla_tpu_sliced_prefetch_max_slices": "0",
        # The cores add up what they exchange themselves. Nothing runs beside it that they could do meanwhile, and what
        # goes through the sparse cores goes through HBM: 1.65 times the weights' bytes for 64 rows on a tpu7x.
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "false",
    }
)


@dataclass(frozen=True, kw_only=True)
class Unbuilt:
    """In the place of a program that did not compile; calling it says why."""

    reason: str

    def __call__(self, *_: Any) -> NoReturn:
        """Raises `RuntimeError`."""
        raise RuntimeError(self.reason)


def options_for(mesh: Mesh | None, /) -> dict[str, str] | None:
    """The compiler's, for programs of these devices; `None` of a mesh is the one that is here."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    return dict(_known(device)) if device.platform == "tpu" else None


def unknown_options(mesh: Mesh | None, /) -> frozenset[str]:
    """Those that this version would give the compiler, and that the compiler has not."""
    known = options_for(mesh)
    return frozenset() if known is None else frozenset(_TPU_OPTIONS) - frozenset(known)


@cache
def _known(device: jax.Device, /) -> Mapping[str, str]:
    # They are the compiler's own, and may be gone in its next version: programs are slower then, and else the same.
    with without_cache():
        return {name: value for name, value in _TPU_OPTIONS.items() if _takes(device, {name: value})}


def _takes(device: jax.Device, option: dict[str, str], /) -> bool:
    smallest = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1, compiler_options=option).lower(smallest).compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" in str(error):
            return False
        raise
    return True


def compile_all[Key](
    jobs: Mapping[Key, jax.stages.Lowered], /, *, progress: Callable[[str], None]
) -> dict[Key, jax.stages.Compiled | Unbuilt]:
    """Every program, compiled as many at once as there are cores."""
    done: dict[Key, jax.stages.Compiled | Unbuilt] = {}
    with roomy_threads(os.cpu_count() or 1) as pool:
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
def roomy_threads(count: int, /) -> Iterator[ThreadPoolExecutor]:
    """Threads whose stacks hold XLA's deepest passes. A thread's size is set for all that start later, so it is set
    back once they have."""
    usual = threading.stack_size(_STACK_BYTES)
    barrier = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(max_workers=count)
    try:
        # One waits in each thread until all are there: a pool starts no more than it needs.
        for _ in range(count):
            pool.submit(barrier.wait)
    finally:
        threading.stack_size(usual)
    barrier.wait()
    with pool:
        yield pool
