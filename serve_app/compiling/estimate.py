"""How long a window would take on a slice of chips, and how many tokens a second that is. Nothing here is measured.

A window takes as long as the slower of two: HBM moving its bytes, or the matrix units doing its products, both at the
published rate. What devices say to each other, a ring at the rate of two links, comes on top: beside HBM less what the
schedule lets HBM do meanwhile. Left out: the host, the drafter, vectors' work, delays of single exchanges, and how far
from its published rates a chip stays.
"""

from dataclasses import dataclass

from deployments.verifier.window import Rung
from serve_app.compiling.chips import Slice
from serve_app.compiling.schedule import exposed
from serve_app.compiling.work import Load, Work

LENGTHS = (1, 2, 3, 4, 5)
"""Acceptance lengths: tokens of one stream per window, the target's own last one included."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds of one program or window.

    Attributes:
        exposed: of exchanges, in which HBM has nothing to do.
    """

    memory: float
    arithmetic: float
    exchange: float
    exposed: float

    @property
    def seconds(self) -> float:
        return max(self.memory + self.exposed, self.arithmetic + self.exchange)

    @property
    def bound(self) -> str:
        """What takes longest."""
        parts = {"HBM": self.memory, "arithmetic": self.arithmetic, "exchange": self.exchange}
        return max(parts, key=lambda name: parts[name])

    def __add__(self, other: "Time") -> "Time":
        return Time(
            memory=self.memory + other.memory,
            arithmetic=self.arithmetic + other.arithmetic,
            exchange=self.exchange + other.exchange,
            exposed=self.exposed + other.exposed,
        )


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of one rung: its layers, and the head and the draw over the rows that emit."""

    rung: Rung
    emits: int
    load: Load
    body: Work
    emit: Work
    time: Time

    @property
    def hbm(self) -> int:
        """Bytes of HBM, all together."""
        return self.body.hbm + self.emit.hbm

    @property
    def weights(self) -> int:
        """Bytes of all weights it reads, each once."""
        return self.body.weights + self.emit.weights

    @property
    def moved(self) -> int:
        """Bytes of HBM outside attention and recurrent states."""
        return self.body.moved + self.emit.moved


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens per second.

    Attributes:
        tokens: of one stream per window.
        drafts: that each slot's row is followed by.
        one: of one stream alone.
        all: of all slots together.
    """

    tokens: int
    drafts: int
    one: float
    all: float


def time_of(work: Work, /, *, on: Slice) -> Time:
    """Of one program on every device of a slice at once."""
    chip = on.chip
    hbm = chip.hbm / chip.devices
    return Time(
        memory=work.hbm / hbm,
        arithmetic=(work.int8 / chip.int8 + work.bf16 / chip.bf16) * chip.devices,
        exchange=work.wire / chip.ring,
        exposed=exposed(work.steps, hbm=hbm, ring=chip.ring),
    )
