"""The gates in force and what happened to their store: the half that stores of all kinds share. Knows no kind of store.

Says each change, each trouble and its end once, however often the store is looked at. Trouble is said for those who
watch: who looks once asks for the status.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable

from serve_app.gating.snapshot import Snapshot, changes
from serve_app.gating.store import Change, OnChange, StoreState, StoreStatus

_log = logging.getLogger(__name__)
_FINE = (StoreState.CURRENT, StoreState.EMPTY)


class LastKnown:
    """What a store keeps about itself.

    Args:
        name: of the store, for the log; holds no secret.
        now: seconds that never go back.
    """

    def __init__(self, name: str, /, *, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._now = now
        # Held for the counts alone, never while others are told: they may be waiting for a thread that asks for counts.
        self._lock = threading.RLock()
        self._snapshot = Snapshot()
        self._on_change: OnChange | None = None
        self._state = StoreState.UNREAD
        self._detail = ""
        self._counts = dict.fromkeys(("loads", "changes", "parse_errors", "missing", "unreachable"), 0)
        self._away_s = 0.0
        self._away_since: float | None = None
        self._changed_at = 0.0
        self._spoilt = b""

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def status(self) -> StoreStatus:
        """The counts of this moment."""
        with self._lock:
            away = 0.0 if self._away_since is None else self._now() - self._away_since
            return StoreStatus(
                state=self._state,
                detail=self._detail,
                revision=self._snapshot.revision,
                unreachable_s=self._away_s + away,
                changed_at=self._changed_at,
                **self._counts,
            )

    def watch(self, on_change: OnChange, /) -> None:
        """Has `on_change` told from now on, and of what is known already."""
        with self._lock:
            self._on_change = on_change
            self._say_trouble()
        known = self._snapshot
        if known != Snapshot():
            self._tell(Change(old=Snapshot(), new=known, changes=changes(Snapshot(), new=known)))

    def accept(self, snapshot: Snapshot, /) -> None:
        """The store was read, and held this. One thread at a time."""
        old = self._snapshot
        with self._lock:
            self._counts["loads"] += 1
            self._enter(StoreState.CURRENT)
            if snapshot == old:
                return
            self._snapshot = snapshot
            self._counts["changes"] += 1
            self._changed_at = time.time()
        change = Change(old=old, new=snapshot, changes=changes(old, new=snapshot))
        for sentence in change.changes or ("nothing but the revision",):
            _log.info("gates in %s, revision %d -> %d: %s", self.name, old.revision, snapshot.revision, sentence)
        self._tell(change)

    def find_nothing(self) -> None:
        """The store could be looked at, and there was nothing."""
        with self._lock:
            if self._state is StoreState.MISSING or self._snapshot != Snapshot():
                self._enter(StoreState.MISSING, detail="it was there and is gone; what it last held stays in force")
            else:
                self._enter(StoreState.EMPTY)

    def find_unreadable(self, detail: str, /, *, content: bytes) -> None:
        """The store holds something that makes no sense; counted and said once while it is the same `content`."""
        seen = hashlib.sha256(content).digest()
        self._enter(StoreState.UNREADABLE, detail=detail, is_known=seen == self._spoilt)
        self._spoilt = seen

    def find_unreachable(self, detail: str, /) -> None:
        """The store could not be looked at."""
        self._enter(StoreState.UNREACHABLE, detail=detail)

    def _enter(self, state: StoreState, *, detail: str = "", is_known: bool = True) -> None:
        with self._lock:
            before, self._state = self._state, state
            self._detail = detail
            if before is state and is_known:
                return
            self._count(state, before=before)
            self._say_trouble()
            if state in _FINE and before not in (*_FINE, StoreState.UNREAD):
                _log.info("gates in %s can be read again", self.name)

    def _say_trouble(self) -> None:
        if self._on_change is not None and self._state not in (*_FINE, StoreState.UNREAD):
            _log.warning("gates in %s are %s: %s", self.name, self._state.value, self._detail)

    def _count(self, state: StoreState, *, before: StoreState) -> None:
        if self._away_since is not None:
            self._away_s += self._now() - self._away_since
            self._away_since = None
        match state:
            case StoreState.UNREACHABLE:
                self._counts["unreachable"] += 1
                self._away_since = self._now()
            case StoreState.UNREADABLE:
                self._counts["parse_errors"] += 1
            case StoreState.MISSING:
                self._counts["missing"] += 1

    def _tell(self, change: Change) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change)
        except Exception:
            _log.exception("what follows a change of the gates in %s failed", self.name)
