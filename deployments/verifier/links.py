"""All drafters of a verifier replica, as the engine asks them: once per round, for all requests, within a deadline.

The engine's thread calls `begin`, `exchange` and `close`; any thread may call `update`. No drafter can make these
raise, or wait longer than the deadline. Knows requests and drafters, not windows and slots.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deployments.messages.drafting import DrafterEndpoint, ToDrafter
from deployments.messages.generation import Decline, GenerateRequest
from deployments.messages.metrics import Metrics
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link import Breakage, DrafterLink, wait_for
from deployments.verifier.link_counters import (
    EXCHANGE_SECONDS,
    FORGOTTEN,
    LATE,
    LINKS_LIVE,
    LINKS_LOST,
    MALFORMED,
    STALE,
)
from deployments.verifier.link_keeper import KeeperSettings, LinkKeeper
from deployments.verifier.link_ledger import Ledger
from deployments.verifier.link_peer import Peer, Punctuality
from deployments.verifier.link_round import Outcome, Round

# A thread may have to wait this long for the interpreter, so a shorter limit would measure us, not the drafter.
_SHORTEST_PING_S = 0.005

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How drafters are asked.

    Attributes:
        verifier: how this replica introduces itself.
        vocab_size: draft tokens must be below it.
        k_max: the most drafts a window ever takes for one request.
        deadline_s: the most a round waits, for all drafters together.
        late_limit: late rounds in a row after which a drafter is left alone and probed in the background.
    """

    verifier: str
    vocab_size: int
    k_max: int
    deadline_s: float = 0.01
    late_limit: int = 3


class DrafterLinks:
    """The links of one verifier replica. A request stays with its drafter while that one is live."""

    def __init__(self, *, settings: LinkSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        # Held by the engine for a round and by the keeper while it changes `_live`: a link is used by one of them.
        self._lock = threading.Lock()
        self._live: tuple[Peer, ...] = ()
        self._assigned: dict[str, Peer] = {}
        self._is_shut = False
        self._begun: Round | None = None
        self._keeper = LinkKeeper(
            settings=KeeperSettings(verifier=settings.verifier, ping_s=max(settings.deadline_s, _SHORTEST_PING_S)),
            metrics=metrics,
            make_peer=self._make_peer,
            on_ready=self._join,
            on_vanished=self._leave,
        )

    @property
    def live(self) -> int:
        """How many drafters would be asked now."""
        return len(self._live)

    @property
    def kind(self) -> str | None:
        """What kind of drafter is live; `None` when none is."""
        live = self._live
        return live[0].link.welcome.kind if live else None

    def update(self, endpoints: Iterable[DrafterEndpoint], /) -> None:
        """Says which drafters discovery lists now; never waits. Call it every second, not when discovery failed."""
        self._keeper.update(endpoints)

    def begin(self, request: GenerateRequest, /) -> None:
        """Tells a drafter of a new request's prompt, so that it can read it while the target does. May be left out."""
        with self._lock:
            peer = self._peer_of(request.request_id)
            if peer is None or peer.link.is_choked:
                return
            peer.link.send([peer.ledger.open(request)])
            self._lose_if_broken(peer)

    def ask(self, turns: Sequence[DraftWanted], /) -> None:
        """Sends what `exchange` will want next, so that drafters work while the engine does. May be left out."""
        with self._lock:
            if self._live and turns and self._begun is None:
                started = time.monotonic()
                self._begun = Round()
                self._ask(turns, round_=self._begun)
                self._begun.spent_s = time.monotonic() - started

    def exchange(self, turns: Sequence[DraftWanted], /) -> dict[str, Outcome]:
        """Commits what each drafter does not have yet, and collects its drafts.

        Returns:
            For every turn's request a block that may enter the window as it is (chain, at most `k` tokens, all in
            the vocabulary), or why there is none.
        """
        with self._lock:
            round_, self._begun = self._begun or Round(), None
            if not self._live or not turns:
                return dict.fromkeys((turn.request.request_id for turn in turns), Decline.DRAFTER_UNREACHABLE)
            started = time.monotonic()
            fresh = round_.narrow(turns)
            if fresh:
                self._ask(fresh, round_=round_)
            self._collect(round_, deadline=started + self._settings.deadline_s)
            self._metrics.observe(EXCHANGE_SECONDS, value=time.monotonic() - started + round_.spent_s)
            self._finish(round_)
            return round_.outcomes

    def close(self, request_id: str, /, *, reason: str) -> None:
        """Ends a request."""
        with self._lock:
            self._assigned.pop(request_id, None)
            # Any of them may hold it: a request that has moved is not closed where it was.
            for peer in self._live:
                message = peer.ledger.close(request_id, reason=reason)
                if message is not None and not peer.link.is_choked:
                    peer.link.send([message])
                    self._lose_if_broken(peer)

    def shut(self) -> None:
        """Closes every link and ends the background thread."""
        with self._lock:
            self._is_shut = True
            for peer in self._live:
                peer.link.close()
            self._set_live(())
        self._keeper.stop()

    def _ask(self, turns: Sequence[DraftWanted], *, round_: Round) -> None:
        batches: dict[Peer, list[ToDrafter]] = {}
        choked = {peer for peer in self._live if _is_choked(peer)}
        for turn in turns:
            request_id = turn.request.request_id
            round_.note(turn)
            peer = self._peer_of(request_id)
            if peer is None or turn.k < 1:
                round_.outcomes[request_id] = Decline.DRAFTER_UNREACHABLE if peer is None else Decline.NO_GUESS
                continue
            if peer in choked:
                round_.outcomes[request_id] = Decline.LATE
                self._metrics.add(LATE)
                continue
            messages = peer.ledger.ask(turn, k=min(turn.k, peer.link.welcome.max_k))
            if not messages:
                round_.outcomes[request_id] = Decline.FORGOTTEN
                continue
            batches.setdefault(peer, []).extend(messages)
            round_.waiting.setdefault(peer, set()).add(request_id)
        for peer, batch in batches.items():
            peer.link.send(batch)
        for peer in choked:
            self._note_late(peer)

    def _collect(self, round_: Round, *, deadline: float) -> None:
        owing = {peer.link: peer for peer in round_.waiting if peer.link.broken is None}
        while owing and (left := deadline - time.monotonic()) > 0:
            for link in wait_for(owing, timeout_s=left):
                link.flush()
                self._read(owing[link], round_=round_)
                if link.broken is not None or not round_.waiting[owing[link]]:
                    del owing[link]

    def _read(self, peer: Peer, *, round_: Round) -> None:
        for message in peer.link.read():
            verdict = peer.ledger.judge(message)
            if verdict is None:
                continue
            counter = _COUNTED.get(verdict.outcome) if isinstance(verdict.outcome, Decline) else None
            if counter is not None:
                self._metrics.add(counter)
            if verdict.settles and verdict.request_id in round_.waiting[peer]:
                round_.outcomes[verdict.request_id] = verdict.outcome
                round_.waiting[peer].discard(verdict.request_id)

    def _finish(self, round_: Round) -> None:
        for peer, missing in round_.waiting.items():
            if peer.link.broken is not None:
                round_.outcomes.update(dict.fromkeys(missing, Decline.DRAFTER_UNREACHABLE))
                self._lose_if_broken(peer)
            elif missing:
                round_.outcomes.update(dict.fromkeys(missing, Decline.LATE))
                self._metrics.add(LATE, amount=len(missing))
                peer.ledger.expire()
                self._note_late(peer)
            else:
                peer.punctuality.on_time()

    def _note_late(self, peer: Peer) -> None:
        peer.punctuality.late()
        if peer.punctuality.is_tardy and peer in self._live:
            self._set_live(tuple(one for one in self._live if one is not peer))
            _log.warning("%s is late too often; it is left alone until it answers again", peer.link.welcome.drafter)
            self._keeper.park(peer)

    def _lose_if_broken(self, peer: Peer) -> None:
        if peer.link.broken is None or peer not in self._live:
            return
        if peer.link.broken is Breakage.MALFORMED:
            self._metrics.add(MALFORMED)
        self._metrics.add(LINKS_LOST)
        _log.warning("the link to %s is lost: %s", peer.link.welcome.drafter, peer.link.broken)
        self._set_live(tuple(one for one in self._live if one is not peer))
        self._keeper.lost(peer.link.endpoint)

    def _peer_of(self, request_id: str) -> Peer | None:
        peer = self._assigned.get(request_id)
        if peer in self._live:
            return peer
        if not self._live:
            return None
        # Rendezvous hashing: spreads requests evenly without a table, and moves only those whose drafter went away.
        chosen = max(self._live, key=lambda one: _weight(request_id, replica=one.link.endpoint.replica))
        self._assigned[request_id] = chosen
        return chosen

    def _make_peer(self, link: DrafterLink, /) -> Peer:
        return Peer(
            link=link,
            ledger=Ledger(vocab_size=self._settings.vocab_size, k_max=self._settings.k_max),
            punctuality=Punctuality(late_limit=self._settings.late_limit),
        )

    def _join(self, peer: Peer, /) -> None:
        with self._lock:
            if self._is_shut:
                peer.link.close()
                return
            peer.link.send(peer.ledger.close_all_but(self._assigned, reason="ended"))
            self._set_live((*self._live, peer))

    def _leave(self, endpoints: frozenset[DrafterEndpoint], /) -> None:
        with self._lock:
            gone = [peer for peer in self._live if peer.link.endpoint in endpoints]
            for peer in gone:
                peer.link.close()
            self._set_live(tuple(peer for peer in self._live if peer not in gone))

    def _set_live(self, live: tuple[Peer, ...]) -> None:
        self._live = live
        self._metrics.set(LINKS_LIVE, value=len(live))


_COUNTED = {Decline.STALE: STALE, Decline.MALFORMED: MALFORMED, Decline.FORGOTTEN: FORGOTTEN}


def _is_choked(peer: Peer) -> bool:
    peer.link.flush()
    return peer.link.is_choked


def _weight(request_id: str, *, replica: str) -> bytes:
    return hashlib.blake2b(f"{replica}\0{request_id}".encode(), digest_size=8).digest()
