"""What the batch may hold, and what changes in it from one window to the next."""

from dataclasses import dataclass

from deployments.verifier.slots import Slot


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a window and the batch can hold.

    Attributes:
        rungs: row counts of windows, rising; the last one is the widest.
        reserve: tokens of a reply for which pages are set aside when it is admitted.
        prompt_rows: the most rows a window carries for prompts while somebody decodes.
        priority_step: seconds of waiting that one step of `priority` is worth; 0 ignores priorities.
    """

    slots: int
    context: int
    rungs: tuple[int, ...]
    tiles: int
    reserve: int = 256
    prompt_rows: int = 32
    priority_step: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Who came and went before a window.

    Attributes:
        expired: gave up waiting; they never ran.
        preempted: lost their slots to others that needed pages, and wait again.
        admitted: have a slot for the first time.
        resumed: have one again.
    """

    expired: tuple[Slot, ...]
    preempted: tuple[Slot, ...]
    admitted: tuple[Slot, ...]
    resumed: tuple[Slot, ...]
