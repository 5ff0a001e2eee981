"""The text of a compiled program, taken apart: computations, instructions, shapes as they lie in memory.

Knows the syntax that XLA prints and how tiles pad an array (openxla.org/xla/shapes, openxla.org/xla/tiled_layout). What
an instruction does is for others to say.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from deployments.messages.errors import ConfigError

_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"\(([\d,*]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_OPENING = re.compile(r"^(ENTRY )?%?([\w.$-]+) \(.*\) -> .*\{$")
_NAME = re.compile(r"^\s*(ROOT )?%?([\w.$-]+) = ")
_OPERAND = re.compile(r"%([\w.$-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.$-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_NUMBERED = re.compile(r"^(\d+) (.*)$")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128, "bf16": 16}
_WIDTH = re.compile(r"^(?:[sufe]|bf)(\d+)")
_HBM = 0


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """One array.

    Attributes:
        type: as XLA names it.
        size: in bytes, with what tiles pad.
        in_hbm: whether it lies in the chip's main memory; otherwise in VMEM, or in scalar memory, or on the host.
    """

    type: str
    shape: tuple[int, ...]
    size: int
    in_hbm: bool

    @property
    def hbm(self) -> int:
        """Its bytes, if they are in HBM."""
        return self.size if self.in_hbm else 0


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line.

    Attributes:
        buffers: the arrays of its result, tuples flattened.
        attributes: what stands behind the operands.
    """

    name: str
    opcode: str
    buffers: tuple[Buffer, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str

    @cached_property
    def called(self) -> tuple[str, ...]:
        """The computations it names, in the order it names them."""
        branches = _BRANCHES.search(self.attributes)
        if branches is not None:
            return tuple(name.strip().lstrip("%") for name in branches[1].split(","))
        return tuple(_CALLED.findall(self.attributes))

    def attribute(self, name: str, /) -> str | None:
        """The value of `name=...`, up to the next comma outside brackets."""
        found = re.search(rf"(?:^|[ ,]){name}=", self.attributes)
        return None if found is None else self.attributes[found.end() : _end(self.attributes, start=found.end())]

    @property
    def origin(self) -> str:
        """The operation it comes from, as JAX named it; empty where nothing is known."""
        found = _OP_NAME.search(self.attributes)
        return "" if found is None else found[1].replace('\\"', '"')

    @property
    def frame(self) -> int:
        """The number of the Python frames it comes from, in the module's table; 0 where nothing is known."""
        found = _FRAME.search(self.attributes)
        return 0 if found is None else int(found[1])

    @property
    def hbm(self) -> int:
        """Bytes of its result that are in HBM."""
        return sum(buffer.hbm for buffer in self.buffers)

    @property
    def size(self) -> int:
        """Bytes of its result wherever they are."""
        return sum(buffer.size for buffer in self.buffers)


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Instructions by name, in the order they run; the last word is the root's."""

    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction

    @cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """By instruction, those that take its result."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                found[operand].append(instruction)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """In their order."""
        own = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return tuple(sorted(own, key=lambda one: int(one.literal)))

    def operands(self, instruction: Instruction, /) -> tuple[Instruction, ...]:
        """What the instruction takes."""
        return tuple(self.instructions[name] for name in instruction.operands)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A whole program.

    Attributes:
        aliased: parameter numbers whose memory some output takes over.
        frames: by number, the source files that an instruction's Python frames lie in, innermost first.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    aliased: frozenset[int]
    frames: Mapping[int, tuple[str, ...]]

    def sources(self, instruction: Instruction, /) -> tuple[str, ...]:
        """The source files an instruction comes from, innermost first; none for what the compiler put in."""
        return self.frames.get(instruction.frame, ())


def parse_module(text: str, /) -> Module:
    """Takes a program's text apart.

    Raises:
        ConfigError: it is not the text of a compiled program, or of an XLA that prints another syntax.
    """
    header, computations, entry = text.split("\n", 1)[0], {}, None
    for is_entry, computation in _computations(text):
        computations[computation.name] = computation
        entry = computation if is_entry else entry
    if entry is None:
        raise ConfigError("the compiler's text has no entry computation; this version of XLA prints another syntax")
    return Module(computations=computations, entry=entry, aliased=_aliased(header), frames=_frames(text))


def _computations(text: str) -> Iterator[tuple[bool, Computation]]:
    opening: re.Match[str] | None = None
    instructions: dict[str, Instruction] = {}
    root = ""
    for line in text.splitlines():
        if opening is None:
            opening = _OPENING.match(line)
        elif line.startswith("}"):
            own = dict(instructions)
            yield (
                bool(opening[1]),
                Computation(name=opening[2], instructions=own, root=own[root or next(reversed(own))]),
            )
            opening, root = None, ""
            instructions.clear()
        elif (name := _NAME.match(line)) is not None:
            instructions[name[2]] = _instruction(name[2], text=_COMMENT.sub("", line[name.end() :]))
            root = name[2] if name[1] else root


def _instruction(name: str, *, text: str) -> Instruction:
    end = _matching(text, start=0) + 1 if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    opening = rest.index("(")
    closing = _matching(rest, start=opening)
    literal = rest[opening + 1 : closing]
    return Instruction(
        name=name,
        opcode=rest[:opening],
        buffers=tuple(_buffers(shape)),
        operands=tuple(_OPERAND.findall(literal)),
        literal=literal,
        attributes=rest[closing + 1 :].lstrip(", "),
    )


def _buffers(shape: str) -> Iterator[Buffer]:
    for found in _ARRAY.finditer(shape):
        sizes = tuple(int(size.lstrip("<=")) for size in found[2].split(",") if size)
        layout = found[3] or ""
        space = _SPACE.search(layout)
        order, _, tiling = layout.partition(":")
        yield Buffer(
            type=found[1],
            shape=sizes,
            size=_elements(sizes, order=order, tiling=tiling.partition("T")[2]) * _bits(found[1]) // 8,
            # Single numbers are the scalar unit's, wherever their layout says they are.
            in_hbm=bool(sizes) and (space is None or int(space[1]) == _HBM),
        )


def _elements(sizes: tuple[int, ...], *, order: str, tiling: str) -> int:
    """With padding: each tile splits the last dimensions in two, and the next one is laid over the inner halves."""
    minor_first = [int(number) for number in order.split(",") if number]
    dims = [sizes[number] for number in reversed(minor_first)] if minor_first else list(sizes)
    for tile in _TILE.findall(re.split(r"[A-RU-Z]", tiling)[0]):
        inner = [int(size) for size in tile.split(",") if size != "*"]
        outer = dims[-len(inner) :]
        dims[-len(inner) :] = [
            *(-(-size // width) for size, width in zip(outer, inner[-len(outer) :], strict=False)),
            *inner,
        ]
    return math.prod(dims)


def _bits(type_name: str) -> int:
    if type_name in _BITS:
        return _BITS[type_name]
    width = _WIDTH.match(type_name)
    return 8 if width is None else int(width[1])


def _matching(text: str, *, start: int) -> int:
    """Where the bracket that opens at `start` closes; text in quotes does not count."""
    depth, is_quoted = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if character == '"' and text[position - 1] != "\\":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                return position
    raise ConfigError(
        "the compiler's text has a bracket that does not close; this version of XLA prints another syntax"
    )


def _end(text: str, *, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if text[position] == "," and depth == 0:
            return position
    return len(text)


def _frames(text: str) -> Mapping[int, tuple[str, ...]]:
    """From the four tables that stand before the first computation."""
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    table: dict[int, str] = {}
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            break
        if (row := _NUMBERED.match(line)) is not None:
            table[int(row[1])] = row[2]
        elif line in tables:
            table = tables[line]
    files = {number: name.strip('"') for number, name in tables["FileNames"].items()}
    found: dict[int, tuple[str, ...]] = {0: ()}
    # A frame comes after the one it was called from, whose number is printed one too high.
    for number, frame in tables["StackFrames"].items():
        location, parent = _numbers(frame)
        found[number] = (files[_numbers(tables["FileLocations"][location])[0]], *found.get(parent - 1, ()))
    return found


def _numbers(row: str) -> tuple[int, int]:
    first, second = re.findall(r"=(\d+)", row)[:2]
    return int(first), int(second)


def _aliased(header: str) -> frozenset[int]:
    found = header.find("input_output_alias={")
    if found < 0:
        return frozenset()
    start = header.index("{", found)
    body = header[start : _matching(header, start=start)]
    return frozenset(int(number) for number in re.findall(r": \((\d+),", body))
