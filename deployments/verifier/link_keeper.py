"""The background half of the links: connects to drafters that discovery lists, and probes those that were late.

One thread, so that neither the engine nor an event loop ever waits for a drafter that is not in use. Knows no requests.
Links in use belong to the engine; this thread touches only those it was handed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deployments.messages.drafting import DrafterEndpoint
from deployments.messages.errors import Unavailable
from deployments.messages.metrics import Metrics
from deployments.verifier.link import DrafterLink
from deployments.verifier.link_counters import CONNECTS, LINKS_PARKED
from deployments.verifier.link_peer import FIRST_PAUSE_S, LONGEST_PAUSE_S, Peer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """Names and time limits.

    Attributes:
        verifier: how this replica introduces itself.
        ping_s: a late drafter is punctual again when it answers a ping within this time.
    """

    verifier: str
    ping_s: float
    connect_s: float = 1.0


@dataclass(slots=True)
class _Parked:
    peer: Peer
    due: float


@dataclass(slots=True)
class _Failed:
    """An endpoint that did not let us in: when to try again, and how long to wait if it fails once more."""

    not_before: float
    pause_s: float


class LinkKeeper:
    """Keeps a link to every endpoint that `update` lists.

    Args:
        make_peer: wraps a new link.
        on_ready: called on the keeper's thread with a peer that may be used; it then belongs to the engine.
        on_vanished: called on the keeper's thread with endpoints that discovery no longer lists.
    """

    def __init__(
        self,
        *,
        settings: KeeperSettings,
        metrics: Metrics,
        make_peer: Callable[[DrafterLink], Peer],
        on_ready: Callable[[Peer], None],
        on_vanished: Callable[[frozenset[DrafterEndpoint]], None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._make_peer = make_peer
        self._on_ready = on_ready
        self._on_vanished = on_vanished
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._wanted: frozenset[DrafterEndpoint] = frozenset()
        self._to_try: set[DrafterEndpoint] = set()
        self._held: set[DrafterEndpoint] = set()
        self._parked: list[_Parked] = []
        self._failed: dict[DrafterEndpoint, _Failed] = {}

    def update(self, endpoints: Iterable[DrafterEndpoint], /) -> None:
        """Says which drafters there are. Each listing lets one attempt be made at each that has no link."""
        with self._wake:
            self._wanted = frozenset(endpoints)
            self._failed = {one: failed for one, failed in self._failed.items() if one in self._wanted}
            now = time.monotonic()
            self._to_try = {
                one
                for one in self._wanted - self._held
                if one not in self._failed or self._failed[one].not_before <= now
            }
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="drafter-links", daemon=True)
                self._thread.start()
            self._wake.notify()

    def park(self, peer: Peer, /) -> None:
        """Takes a peer that was late; it is probed, and comes back through `on_ready`."""
        with self._wake:
            self._parked.append(_Parked(peer, time.monotonic() + peer.punctuality.next_pause_s()))
            self._metrics.set(LINKS_PARKED, value=len(self._parked))
            self._wake.notify()

    def lost(self, endpoint: DrafterEndpoint, /) -> None:
        """Forgets an endpoint whose link broke, until discovery lists it again."""
        with self._wake:
            self._held.discard(endpoint)

    def stop(self) -> None:
        """Ends the thread and closes the links it holds."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        for parked in self._parked:
            parked.peer.link.close()
        self._parked.clear()

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._stopped:
                    return
                vanished = frozenset(self._held - self._wanted)
                to_try, self._to_try = self._to_try, set()
                now = time.monotonic()
                due = [parked for parked in self._parked if parked.due <= now]
                if not (vanished or to_try or due):
                    self._wake.wait(min((parked.due - now for parked in self._parked), default=None))
                    continue
            if vanished:
                self._drop(vanished)
            for parked in due:
                self._probe(parked)
            for endpoint in to_try:
                self._connect(endpoint)

    def _drop(self, vanished: frozenset[DrafterEndpoint]) -> None:
        # First take them from the engine: until then it may still park or lose one of them.
        self._on_vanished(vanished)
        with self._wake:
            gone = [parked for parked in self._parked if parked.peer.link.endpoint in vanished]
            self._held -= vanished
        for parked in gone:
            self._unpark(parked)
            parked.peer.link.close()

    def _probe(self, parked: _Parked) -> None:
        peer = parked.peer
        if peer.link.broken is None and peer.link.ping(timeout_s=self._settings.ping_s):
            self._unpark(parked)
            self._metrics.add(CONNECTS, labels=("restored",))
            peer.punctuality.restored()
            self._on_ready(peer)
        elif peer.link.broken is not None:
            self._unpark(parked)
            self.lost(peer.link.endpoint)
        else:
            parked.due = time.monotonic() + peer.punctuality.next_pause_s()

    def _unpark(self, parked: _Parked) -> None:
        with self._wake:
            if parked in self._parked:
                self._parked.remove(parked)
            self._metrics.set(LINKS_PARKED, value=len(self._parked))

    def _connect(self, endpoint: DrafterEndpoint) -> None:
        with self._wake:
            # An endpoint may have been queued again while it was being connected to.
            if self._stopped or endpoint in self._held or endpoint not in self._wanted:
                return
        try:
            link = DrafterLink.connect(endpoint, verifier=self._settings.verifier, timeout_s=self._settings.connect_s)
        except Unavailable as error:
            self._metrics.add(CONNECTS, labels=("failed",))
            _log.warning("%s", error)
            with self._wake:
                pause_s = self._failed[endpoint].pause_s if endpoint in self._failed else FIRST_PAUSE_S
                next_pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._failed[endpoint] = _Failed(time.monotonic() + pause_s, next_pause_s)
            return
        with self._wake:
            self._failed.pop(endpoint, None)
            self._held.add(endpoint)
        self._metrics.add(CONNECTS, labels=("connected",))
        self._on_ready(self._make_peer(link))
