"""What the parts of the kernel have in common: copies between a TPU's memories, and what stands for an array."""

from typing import Any, Protocol

type Part = Any
"""An array; within the kernel, where it lies; before, of what sizes or in which memory it will be."""

type View = Any
"""Where an array or a part of one lies: `jax.Ref` is for whole ones."""


class Copy(Protocol):
    """One that goes on beside everything else; whoever waits for it names the same sizes and semaphore."""

    def start(self) -> None:
        """Begins."""

    def wait(self) -> None:
        """Until it is done."""
