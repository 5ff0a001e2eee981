"""How long devices wait for each other while nothing else gets on: exchanges, less what HBM does meanwhile.

Weights are fetched ahead: a copy into VMEM begins, other instructions run, and one waits for it. While devices exchange
something, copies that have begun go on. A program's text is its schedule, so what is under way at each exchange can be
read off it: of what begins, the first is served first, and an instruction that moves bytes itself has half of the rate
as long as something else is under way.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Step:
    """An instruction of a schedule.

    Attributes:
        moved: bytes of HBM.
        begins: the name under which a copy of these bytes begins; empty where they are moved at once.
        awaits: the copy that has to be there now.
        wire: bytes that the device sends to others.
    """

    moved: int = 0
    begins: str = ""
    awaits: str = ""
    wire: float = 0.0


def exposed(steps: Iterable[Step], /, *, hbm: float, ring: float) -> float:
    """Seconds of exchanges in which HBM has nothing to do.

    Args:
        hbm, ring: bytes per second to memory, and to other devices.
    """
    copies = _Copies()
    alone = 0.0
    for step in steps:
        if step.awaits:
            copies.arrive(step.awaits)
        if step.begins:
            copies.begin(step.begins, step.moved)
        else:
            copies.go_on(step.moved)
        alone += step.wire / ring - copies.go_on(step.wire / ring * hbm) / hbm
    return alone


class _Copies:
    """Those that have begun and are not there yet."""

    def __init__(self) -> None:
        self._left: deque[tuple[str, float]] = deque()

    def begin(self, name: str, size: float, /) -> None:
        self._left.append((name, size))

    def arrive(self, name: str, /) -> None:
        """With all that began before it; nothing happens if it is there."""
        if any(waiting == name for waiting, _ in self._left):
            while self._left.popleft()[0] != name:
                pass

    def go_on(self, most: float, /) -> float:
        """As many bytes of them arrive, or all; how many did."""
        left = most
        while self._left and left > 0:
            name, size = self._left.popleft()
            if size > left:
                self._left.appendleft((name, size - left))
            left -= min(size, left)
        return most - left
