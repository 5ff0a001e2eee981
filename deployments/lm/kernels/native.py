"""Compiles the C++ kernels for this processor, once, and makes them known to XLA. Knows no networks.

The library is kept under a name that says what went into it (sources, compiler, flags, jaxlib), so a stale one is
never loaded. It is built by whoever needs it first; several processes may do so at once.
"""

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import jax

from deployments.lm.kernels.choice import Kernels
from deployments.messages.errors import ConfigError

INT8_LINEAR = "outrider_int8_linear"
EXPERT_LINEAR = "outrider_expert_linear"
ATTEND = "outrider_attend"

_SYMBOLS = {INT8_LINEAR: "OutriderInt8Linear", EXPERT_LINEAR: "OutriderExpertLinear", ATTEND: "OutriderAttend"}
_FOLDER = Path(__file__).parent
_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "fma")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-shared",
    "-pthread",
    "-fPIC",
    "-fno-exceptions",
    # Sums that are written apart stay apart.
    "-ffp-contract=off",
    *(f"-m{feature.replace('_', '')}" for feature in _NEEDED),
)
_BUILD_S, _ANSWER_S = 300, 30


def choose_kernels(wanted: Kernels, /, *, cache: Path) -> tuple[Kernels, str]:
    """What `wanted` comes to on this machine, and why; native kernels are ready to run when it returns.

    Args:
        cache: where libraries are kept between starts.

    Raises:
        ConfigError: `NATIVE` or `PALLAS` was asked for and cannot be had.
    """
    if wanted in (Kernels.XLA, Kernels.PALLAS_INTERPRETED):
        return wanted, "asked for"
    chip = jax.default_backend()
    if chip == "tpu" and wanted is not Kernels.NATIVE:
        return Kernels.PALLAS, "TPU"
    if wanted is Kernels.PALLAS:
        raise ConfigError(
            f"Pallas kernels cannot be used: they are for TPUs, and this is a {chip}; take kernels 'auto'"
        )
    hindrance = _hindrance() or _load(cache)
    if hindrance is None:
        return Kernels.NATIVE, "AVX-512 VNNI"
    if wanted is Kernels.NATIVE:
        raise ConfigError(f"native kernels cannot be used: {hindrance}; take kernels 'xla', or 'auto'")
    return Kernels.XLA, hindrance


def described(kernels: Kernels, /) -> str:
    """The kernels' name; that of native ones with what tells their library from others."""
    libraries = sorted(name.removeprefix("kernels-").removesuffix(".so") for name in _registered())
    return " ".join((kernels.value, *libraries)) if kernels is Kernels.NATIVE else kernels.value


def sources() -> tuple[Path, ...]:
    """Every file a library is made of, the compiled ones first."""
    return (*sorted(_FOLDER.glob("*/native.cc")), *sorted(_FOLDER.glob("*.h")))


def _hindrance() -> str | None:
    if jax.default_backend() != "cpu":
        return f"they are for processors, and this is a {jax.default_backend()}"
    missing = [feature for feature in _NEEDED if feature not in _processor_features()]
    if missing:
        return f"this processor lacks {', '.join(missing)}"
    if not _compiler():
        named = os.environ.get("CXX")
        return f"there is no {named}, which CXX names" if named else "there is no C++ compiler; install g++ or clang++"
    return None


def _processor_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def _compiler() -> tuple[str, ...]:
    """The compiler's path and the arguments that CXX gives it; empty when there is none."""
    named = os.environ.get("CXX")
    choices = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    return next(((found, *words[1:]) for words in choices if words and (found := shutil.which(words[0]))), ())


def _load(cache: Path) -> str | None:
    """Builds and registers; says what went wrong, if anything did."""
    compiler = _compiler()
    try:
        library = cache / f"kernels-{_fingerprint(compiler)}.so"
        if library.name in _registered():
            return None
        if not _is_whole(library):
            trouble = _build(library, compiler=compiler)
            if trouble:
                return trouble
        _register(library)
    except subprocess.TimeoutExpired as error:
        return f"{compiler[0]} took longer than {error.timeout:g} s"
    except (OSError, AttributeError) as error:
        return f"{compiler[0]} or what it built in {cache} cannot be used ({error})"
    return None


def _is_whole(library: Path) -> bool:
    """Whether the library is the one that was built: a shortened one would end the process as soon as it is read."""
    try:
        return _seal(library).read_text() == hashlib.sha256(library.read_bytes()).hexdigest()
    except OSError:
        return False


def _seal(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _fingerprint(compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    asked = [*compiler, "--version"]
    described = subprocess.run(asked, capture_output=True, check=False, timeout=_ANSWER_S).stdout
    for part in (described, " ".join((*compiler, *_FLAGS)).encode(), version("jaxlib").encode()):
        digest.update(part + b"\0")
    for source in sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def _build(library: Path, *, compiler: tuple[str, ...]) -> str | None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = Path(folder) / library.name
            units = [str(source) for source in sources() if source.suffix == ".cc"]
            command = [*compiler, *_FLAGS, "-isystem", jax.ffi.include_dir(), *units, "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
                return f"{compiler[0]} failed: {first.strip()}"
            seal = built.with_suffix(".sha256")
            seal.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
            # Whoever is last replaces them by an equal pair, or by one that is built anew at the next start.
            built.replace(library)
            seal.replace(_seal(library))
    except OSError as error:
        return f"{library.parent} cannot be written ({error})"
    return None


def _register(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    for target, symbol in _SYMBOLS.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(loaded, symbol)), platform="cpu")
    _registered().add(library.name)


@functools.cache
def _registered() -> set[str]:
    """What XLA knows already: it takes each target once in a process, wherever its library lies."""
    return set()
