"""Which kernels a network is built with: XLA's own operations, or ours for this processor. Decided once, at load."""

from enum import StrEnum


class Kernels(StrEnum):
    """`NATIVE` needs AVX-512 with VNNI and a C++ compiler; `AUTO` takes it where it can be had, and XLA elsewhere."""

    AUTO = "auto"
    NATIVE = "native"
    XLA = "xla"
