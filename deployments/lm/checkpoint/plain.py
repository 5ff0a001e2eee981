"""Number types that stand for themselves, one value after the other, as float32. Little-endian, as both formats are."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from deployments.lm.checkpoint.stored import Decode

# Beyond it float32 skips whole numbers.
_MOST_WHOLE = 2**24


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A number type: bytes a value takes, and what makes float32 of them."""

    size: int
    decode: Decode


def _floats(stored: UInt8[np.ndarray, " bytes"], *, layout: str) -> Float32[np.ndarray, " values"]:
    values = stored.view(layout)
    floats: Float32[np.ndarray, " values"] = values.astype(np.float32, copy=False)
    if values.itemsize > floats.itemsize and (np.isinf(floats) & ~np.isinf(values)).any():
        raise ValueError("it holds numbers that float32 cannot")
    return floats


def _halves_of_float32(stored: UInt8[np.ndarray, " bytes"]) -> Float32[np.ndarray, " values"]:
    """bfloat16 is the upper half of a float32."""
    floats: Float32[np.ndarray, " values"] = (stored.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return floats


def _whole(stored: UInt8[np.ndarray, " bytes"], *, layout: str) -> Float32[np.ndarray, " values"]:
    values: Shaped[np.ndarray, " values"] = stored.view(layout)
    if values.size and (values.max() > _MOST_WHOLE or values.min() < -_MOST_WHOLE):
        raise ValueError("it holds numbers that float32 cannot")
    floats: Float32[np.ndarray, " values"] = values.astype(np.float32)
    return floats


def _truths(stored: UInt8[np.ndarray, " bytes"]) -> Float32[np.ndarray, " values"]:
    floats: Float32[np.ndarray, " values"] = (stored != 0).astype(np.float32)
    return floats


PLAIN: Mapping[str, Plain] = {
    "F64": Plain(size=8, decode=partial(_floats, layout="<f8")),
    "F32": Plain(size=4, decode=partial(_floats, layout="<f4")),
    "F16": Plain(size=2, decode=partial(_floats, layout="<f2")),
    "BF16": Plain(size=2, decode=_halves_of_float32),
    "BOOL": Plain(size=1, decode=_truths),
    **{
        f"{sign.upper()}{8 * size}": Plain(size=size, decode=partial(_whole, layout=f"<{sign}{size}"))
        for sign in "iu"
        for size in (1, 2, 4, 8)
    },
}
