"""A ConfigMap as kubelet mounts it: the file leads through `..data` to a folder that is swapped whole."""

import shutil
import tempfile
from pathlib import Path


def mounted(folder: Path, /, *, text: str) -> Path:
    """Mounts `gates.yaml` in an empty folder."""
    swap(folder, text=text)
    path = folder / "gates.yaml"
    path.symlink_to("..data/gates.yaml")
    return path


def swap(folder: Path, /, *, text: str) -> None:
    """Makes a new folder, renames a symlink to it over the old one, and takes the old folder away."""
    data = folder / "..data"
    old = data.resolve() if data.is_symlink() else None
    new = Path(tempfile.mkdtemp(prefix="..2026_", dir=folder))
    (new / "gates.yaml").write_text(text)
    (folder / "..data_tmp").symlink_to(new.name)
    (folder / "..data_tmp").replace(data)
    if old is not None:
        shutil.rmtree(old)
