"""The matrix products of a compiled program: how many operations they take, and of which type.

Vectors' work (norms, softmax, sampling) is not counted: it has no published rate, and hides behind memory.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from serve_app.compiling.hlo import Computation, Instruction, Module
from serve_app.compiling.trips import Times

_PRODUCTS = ("convolution", "dot")
_INT8 = frozenset({"s8", "u8", "s4", "u4"})
# An f32 product that must be exact is six of bf16.
_PASSES = {"highest": 6, "high": 3}


@dataclass(frozen=True, kw_only=True)
class Product:
    """One instruction's products.

    Attributes:
        operations: a multiplication and an addition are two; in units that the chip has, so that an f32 product counts
            as the bf16 products it is made of.
    """

    is_int8: bool
    operations: int
    times: Times = 1

    @property
    def total(self) -> int:
        """In one run of the program."""
        return int(self.operations * self.times)


def products_of(instruction: Instruction, /, *, module: Module, computation: Computation) -> Iterator[Product]:
    """Those of an instruction, fused ones included."""
    if instruction.opcode in _PRODUCTS:
        yield _product(computation, instruction)
    if instruction.opcode == "fusion":
        inside = module.computations[instruction.called[0]]
        for one in inside.instructions.values():
            yield from products_of(one, module=module, computation=inside)


def _product(computation: Computation, one: Instruction) -> Product:
    left, right = (taken.buffers[0] for taken in computation.operands(one)[:2])
    made = math.prod(one.buffers[0].shape)
    if one.opcode == "dot":
        summed = one.attribute("lhs_contracting_dims") or "{}"
        terms = math.prod(left.shape[int(number)] for number in re.findall(r"\d+", summed))
    else:
        terms = _terms(one, kernel=right.shape)
    wanted = one.attribute("operand_precision") or ""
    passes = next((count for name, count in _PASSES.items() if name in wanted), 1) if left.type == "f32" else 1
    return Product(is_int8={left.type, right.type} <= _INT8, operations=2 * made * terms * passes)


def _terms(one: Instruction, *, kernel: tuple[int, ...]) -> int:
    """How many products are summed into each element. A batch is laid out as a dimension of space, of which each
    element meets its own part of the kernel alone: XLA then dilates the left side."""
    labels = (one.attribute("dim_labels") or "").partition("_")[2].partition("->")[0]
    window = one.attribute("window") or ""
    features = kernel[labels.index("i")]
    if "lhs_dilate" in window or "rhs_dilate" in window:
        return features
    sizes = re.search(r"size=([\dx]+)", window)
    return features * (1 if sizes is None else math.prod(map(int, sizes[1].split("x"))))
