"""What a verifier says of its programs, to test with."""

from pathlib import Path
from typing import Any

import msgspec

from deployments.messages.gates import ProgramFacts


def facts(folder: Path, /, **parts: Any) -> ProgramFacts:
    """Facts about a model of a few bytes, which is put into `folder` if it is not there."""
    path = folder / "model.gguf"
    if not path.exists():
        path.write_bytes(b"GGUF and some weights")
    known = ProgramFacts(
        platform="cpu",
        device_kind="cpu",
        model_files=(str(path),),
        architecture="llama",
        precision="int8",
        kernels="native 0123",
        page_size=64,
        context=2048,
        cache_pages=256,
        ladder=(8, 16, 32, 64, 128),
        slots=8,
        draft_k=7,
        draft_rows=8,
        programs="cd" * 32,
    )
    return msgspec.structs.replace(known, **parts)
