"""A window that fails on the device, after it was sent off: the cache that carries its error is replaced."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deployments.lm.quant.linear import Precision
from tests.verifier.forcing import forced, network, programs_for

# Fails when its input is above a half. A callback of JAX's would fail at the call, before anything is under way.
_SOURCE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error fails(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  if (x.typed_data()[0] > 0.5f) return ffi::Error(ffi::ErrorCode::kInternal, "lost the device");
  y->typed_data()[0] = 0;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(Break, fails,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an operation that fails while it runs."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("breaking")
    (folder / "break.cc").write_text(_SOURCE)
    command = [compiler, "-std=c++17", "-O0", "-shared", "-fPIC", "-isystem", jax.ffi.include_dir()]
    subprocess.run([*command, str(folder / "break.cc"), "-o", str(folder / "break.so")], check=True)
    library = ctypes.CDLL(str(folder / "break.so"))
    # Registered with XLA for as long as the process lives.
    jax.ffi.register_ffi_target("break", jax.ffi.pycapsule(library.Break), platform="cpu")
    return "break"


def test_a_cache_that_carries_an_error_is_cleared(breaking: str, golden_llama: Path) -> None:
    programs = programs_for(
        network(str(golden_llama), precision=Precision.F32), precision=Precision.F32, rows=8, context=32, page_size=16
    )
    tokens = tuple(range(1, 9))
    ((_, _, wanted),) = forced(programs, tokens)
    (rung,) = programs.ladder.rungs
    sound = programs._body[rung]

    def spoilt(cache: Any, sign: Any) -> Any:
        zero = jax.ffi.ffi_call(breaking, jax.ShapeDtypeStruct((1,), jnp.float32))(sign)
        return jax.tree.map(lambda part: part + zero[0].astype(part.dtype), cache)

    spoil = jax.jit(spoilt, donate_argnums=0)
    programs._body[rung] = lambda weights, cache, window: sound(weights, spoil(cache, jnp.ones(1)), window)
    with pytest.raises(jax.errors.JaxRuntimeError, match="lost the device"):
        [np.asarray(hidden) for _, _, hidden in forced(programs, tokens)]
    programs._body[rung] = sound

    programs.clear_cache()

    ((_, _, found),) = forced(programs, tokens)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_a_cache_that_is_gone_is_made_anew(golden_llama: Path) -> None:
    programs = programs_for(
        network(str(golden_llama), precision=Precision.F32), precision=Precision.F32, rows=8, context=32, page_size=16
    )
    for part in jax.tree.leaves(programs._cache):
        part.delete()

    programs.clear_cache()

    assert all(not np.asarray(part).any() for part in jax.tree.leaves(programs._cache))
