"""What a store of gates is to those who read it, write it and watch it. Knows no kind of store.

A reader never sees an error: it has the last gates that could be read, and `StoreStatus` says what is wrong. A writer
is told at once, by `GateStoreError`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deployments.messages.errors import OutriderError
from serve_app.gating.records import Forced, Record, Target
from serve_app.gating.snapshot import Snapshot


class GateStoreError(OutriderError):
    """The gates cannot be written or exported now; what there was is still there."""


class StoreState(StrEnum):
    """How a store was found when it was last looked at.

    `EMPTY` never held anything that this process saw; `MISSING` did, and it is gone; `UNREADABLE` is there and makes no
    sense; `UNREACHABLE` cannot be looked at. In the last three the last gates that were read stay in force.
    """

    UNREAD = "unread"
    CURRENT = "current"
    EMPTY = "empty"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, kw_only=True)
class StoreStatus:
    """What a store counts, for whoever exports it.

    Attributes:
        detail: what is wrong, in a sentence; empty while nothing is.
        revision: of the gates in force.
        loads: reads of the whole store that succeeded.
        changes: times that the gates in force became others.
        parse_errors: contents that could not be read, each counted once.
        missing: times that the store was gone.
        unreachable: times that it became unreachable.
        unreachable_s: seconds it was so, in all.
        changed_at: when the gates in force last became others, in seconds since 1970; 0 if never.
    """

    state: StoreState
    detail: str
    revision: int
    loads: int
    changes: int
    parse_errors: int
    missing: int
    unreachable: int
    unreachable_s: float
    changed_at: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """The gates became others.

    Attributes:
        changes: a sentence for each; empty when the revision alone is new.
    """

    old: Snapshot
    new: Snapshot
    changes: tuple[str, ...]


type OnChange = Callable[[Change], None]


class GateStore(Protocol):
    """Where gates are kept. Its methods may be called from any thread, and block."""

    @property
    def snapshot(self) -> Snapshot:
        """The gates in force; does not look at the store."""

    def load(self) -> Snapshot:
        """Looks at the store and returns the gates in force then. Never raises."""

    def status(self) -> StoreStatus:
        """What is known about the store; does not look at it."""

    def put(self, record: Record, /) -> None:
        """Puts a record in place of the one with its key.

        Raises:
            GateStoreError: it could not be written.
        """

    def force(self, forced: Forced, /) -> None:
        """Puts an operator's word in place of the one with its target. Raises `GateStoreError`."""

    def unforce(self, target: Target, /) -> bool:
        """Takes an operator's word back; whether there was one. Raises `GateStoreError`."""

    def remove(self, record: str, /) -> bool:
        """Removes the record with this id; whether there was one. Raises `GateStoreError`."""

    def export(self) -> str:
        """The whole store as YAML, as a `file:` store reads it. Raises `GateStoreError` if it cannot be read now."""

    def watch(self, on_change: OnChange, /) -> None:
        """Begins to watch the store, and tells every change, the first gates included. May be called once.

        `on_change` runs in the watching thread, or in that of whoever called `load` or wrote; what it raises is logged.
        It may ask for `snapshot` and `status` in any thread, but must not wait for another thread that looks or writes.
        """

    def close(self) -> None:
        """Stops watching. The snapshot stays."""
