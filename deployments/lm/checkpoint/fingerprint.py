"""Tells model files apart without reading all of them. Knows bytes, no format.

Two files of one architecture differ in their tensors' bytes, which samples all over the file see; hashing a large file
whole would take minutes at every start.
"""

import hashlib
from pathlib import Path

_PIECE = 64 * 1024
_PIECES = 32


def fingerprint(path: Path, /) -> str:
    """A hash over the file's size, its beginning, and pieces evenly spread over the rest."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for piece in range(_PIECES):
            file.seek(max(size - _PIECE, 0) * piece // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()
