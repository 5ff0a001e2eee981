"""Builds llama.cpp's server from the source distribution of llama-cpp-python, for a comparison on the same machine.

Needs pip, cmake, ninja and a C++ compiler; knows nothing of Outrider. The instruction sets are named one by one, so
that the build is the same wherever it is made; a processor without AVX-512 cannot run it.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python"
RELEASE = "0.3.36"
TARGETS = ("llama-server", "llama-batched-bench")
RECORD = "built.json"

_SETS = ("SSE42", "AVX", "AVX2", "F16C", "FMA", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
_WITHOUT = (
    *("GGML_NATIVE", "GGML_AMX_TILE", "GGML_AMX_INT8", "GGML_AMX_BF16", "BUILD_SHARED_LIBS"),
    *("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP"),
    *("LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI"),
)
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    *(f"-DGGML_{name}=ON" for name in _SETS),
    *(f"-D{name}=OFF" for name in _WITHOUT),
)


class BuildFailed(Exception):
    """The build cannot go on; the sentence says why."""


def build_peer(folder: Path, /, *, release: str = RELEASE, jobs: int = 1) -> Path:
    """Makes `folder/bin/llama-server` unless it is there already, and returns its path.

    Raises:
        BuildFailed: a tool is missing, or one of the steps failed.
    """
    server = folder / "bin" / TARGETS[0]
    if server.is_file() and _recorded(folder) == (release, list(OPTIONS)):
        return server
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise BuildFailed(f"{tool} is not installed; the peer is built with cmake, ninja and a C++ compiler")
    folder.mkdir(parents=True, exist_ok=True)
    archive = _fetch(folder, release=release)
    source = _unpack(archive, folder=folder / "source")
    _compile(source, folder=folder / "build", jobs=jobs)
    server.parent.mkdir(exist_ok=True)
    for name in TARGETS:
        shutil.copy2(folder / "build" / "bin" / name, server.parent / name)
    _record(folder, archive=archive, release=release)
    return server


def _recorded(folder: Path) -> tuple[str, list[str]] | None:
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record.get("release"), record.get("options")


def _fetch(folder: Path, *, release: str) -> Path:
    """The source distribution, by pip, so that its index settings hold; kept between builds."""
    archive = folder / "sdist" / f"{PACKAGE.replace('-', '_')}-{release}.tar.gz"
    if not archive.is_file():
        # Only this package from source: what pip needs to read its metadata may come as wheels.
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps")
        _step(*pip, "--no-binary", PACKAGE, "--dest", str(archive.parent), f"{PACKAGE}=={release}")
    return archive


def _unpack(archive: Path, *, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    found = sorted(folder.glob("*/vendor/llama.cpp/CMakeLists.txt"))
    if not found:
        raise BuildFailed(f"{archive.name} holds no vendor/llama.cpp; choose another --release")
    return found[0].parent


def _compile(source: Path, *, folder: Path, jobs: int) -> None:
    _step("cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja", "--fresh", *OPTIONS)
    _step("cmake", "--build", str(folder), "--parallel", str(jobs), "--target", *TARGETS)


def _record(folder: Path, *, archive: Path, release: str) -> None:
    server = folder / "bin" / TARGETS[0]
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    record = {
        "package": PACKAGE,
        "release": release,
        "sha256": digest,
        "version": [line for line in (said.stdout + said.stderr).splitlines() if line.startswith(("version", "built"))],
        "options": OPTIONS,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def _step(*command: str) -> None:
    print("+ " + " ".join(command), file=sys.stderr, flush=True)
    # What a step prints belongs to the progress, not to the result.
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if status:
        raise BuildFailed(f"`{' '.join(command[:3])} ...` ended with status {status}; its output above says why")


def main() -> None:
    """`python -m tests.bench.build_peer FOLDER`: prints the path of the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything goes: sdist, source, build, bin")
    parser.add_argument("--release", default=RELEASE, help=f"of {PACKAGE} (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (default: all cores)")
    options = parser.parse_args()
    try:
        print(build_peer(options.folder.expanduser().resolve(), release=options.release, jobs=options.jobs))
    except BuildFailed as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
