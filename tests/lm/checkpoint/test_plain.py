"""Plain number types as float32: the floats as numpy's own conversions have them, whole numbers if they all fit."""

import ml_dtypes
import numpy as np
import pytest

from deployments.lm.checkpoint.plain import PLAIN

ALL_PAIRS = np.arange(2**16, dtype="<u2")


def decoded(kind: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return PLAIN[kind].decode(np.frombuffer(values.tobytes(), np.uint8))


def test_every_bfloat16_is_the_float_it_stands_for() -> None:
    wanted = ALL_PAIRS.view(ml_dtypes.bfloat16).astype(np.float32)

    np.testing.assert_array_equal(decoded("BF16", ALL_PAIRS), wanted)


def test_every_half_is_the_float_it_stands_for() -> None:
    sign, exponent, fraction = ALL_PAIRS >> 15, (ALL_PAIRS >> 10) & 31, (ALL_PAIRS & 1023) / 1024.0
    size = np.where(exponent == 0, fraction * 2.0**-14, (1 + fraction) * 2.0 ** (exponent - 15.0))
    size = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), size)

    np.testing.assert_array_equal(decoded("F16", ALL_PAIRS), np.where(sign == 1, -size, size).astype(np.float32))


def test_doubles_are_rounded_and_what_does_not_fit_is_refused() -> None:
    values = np.array([0.1, -1e-300, np.inf, np.nan, 3e38], "<f8")

    np.testing.assert_array_equal(decoded("F64", values), np.array([0.1, -0.0, np.inf, np.nan, 3e38], np.float32))
    with pytest.raises(ValueError, match="numbers that float32 cannot"):
        decoded("F64", np.array([1e39], "<f8"))


@pytest.mark.parametrize("kind", ["I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"])
def test_whole_numbers_are_themselves(kind: str) -> None:
    layout = f"<{kind[0].lower()}{PLAIN[kind].size}"
    limits = np.iinfo(layout)
    values = np.array([0, 1, 127, max(limits.min, -(2**24)), min(limits.max, 2**24)], layout)

    assert decoded(kind, values).tolist() == [float(n) for n in values.tolist()]
    for value in (limits.min, limits.max):
        if abs(value) > 2**24:
            with pytest.raises(ValueError, match="numbers that float32 cannot"):
                decoded(kind, np.array([0, value], layout))


def test_truths_are_one_and_nothing() -> None:
    assert decoded("BOOL", np.array([0, 1, 255], np.uint8)).tolist() == [0.0, 1.0, 1.0]
