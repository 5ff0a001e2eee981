"""Which kernels a network is built with: XLA's own operations, or ours for this processor. Decided once, at load."""

from enum import StrEnum


class Kernels(StrEnum):
    """`NATIVE` needs AVX-512 with VNNI and a C++ compiler, `PALLAS` a TPU; `AUTO` takes what can be had, XLA elsewhere.

    `PALLAS_INTERPRETED` is the same arithmetic as `PALLAS` on any chip, slowly: for tests. The two are apart because a
    program for a TPU may be lowered where there is none.
    """

    AUTO = "auto"
    NATIVE = "native"
    PALLAS = "pallas"
    PALLAS_INTERPRETED = "pallas-interpreted"
    XLA = "xla"
