"""The requests a drafter replica holds, one session each, with the rules that keep them in step with the verifier.

A session lives under (connection, request id), so verifiers cannot see or disturb each other's requests. Knows messages
and a strategy, no sockets. Bounded: the session unused for longest goes first, and its next commit gets `Forgotten`.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from deployments.drafter.counters import EVICTED, FORGOTTEN, SESSIONS, TOKENS_HELD
from deployments.lm.drafting.strategy import Strategy
from deployments.messages.drafting import AcceptedPrefix, Close, DraftBlock, Forgotten, Open
from deployments.messages.errors import ProtocolError
from deployments.messages.metrics import Metrics

type SessionKey = tuple[int, str]

_MOST_ID = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """How much a replica holds. An n-gram index takes about 350 bytes a token, so a million tokens is some 350 MB.

    Attributes:
        sequence: the longest request; a longer one is not held, and its commits get `Forgotten`.
    """

    sessions: int = 1024
    tokens: int = 1 << 20
    sequence: int = 1 << 17


@dataclass(slots=True)
class _Session:
    scoped_id: str
    tokens: array[int]


class Sessions:
    """All sessions of one replica.

    Rules for a commit: it must begin at or before the current length, and what it repeats must be equal; the rest is
    appended. So a duplicate changes nothing and is answered again. A gap or a difference ends the session with
    `Forgotten`.
    """

    def __init__(self, *, strategy: Strategy, metrics: Metrics, limits: SessionLimits) -> None:
        self._strategy = strategy
        self._metrics = metrics
        self._limits = limits
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def tokens_held(self) -> int:
        return self._tokens

    def open(self, message: Open, /, *, connection: int) -> None:
        """Begins a session, or begins it again. One that is too long is not held.

        Raises:
            ProtocolError: the request id is too long, or a token id is negative or over 32 bits.
        """
        if len(message.request_id) > _MOST_ID:
            raise ProtocolError(f"a request id is longer than {_MOST_ID} characters")
        key = (connection, message.request_id)
        self._drop(key)
        tokens = _as_array(message.prompt_ids)
        if len(tokens) <= self._limits.sequence:
            session = _Session(scoped_id=f"{connection}/{message.request_id}", tokens=tokens)
            self._strategy.open(msgspec.structs.replace(message, request_id=session.scoped_id))
            self._sessions[key] = session
            self._tokens += len(tokens)
            self._make_room()

    def commit(self, message: AcceptedPrefix, /, *, connection: int) -> DraftBlock | Forgotten | None:
        """Appends accepted tokens, and drafts if the message asks for it.

        Raises:
            ProtocolError: no token, a token id of more than 32 bits, or a negative number.
        """
        if not message.token_ids or message.base_len < 0 or message.k < 0:
            raise ProtocolError("a commit needs at least one token, and base_len and k of at least 0")
        key = (connection, message.request_id)
        session = self._sessions.get(key)
        if session is None or not self._append(message, session=session):
            self._drop(key)
            self._metrics.add(FORGOTTEN)
            return Forgotten(request_id=message.request_id)
        self._sessions.move_to_end(key)
        self._make_room()
        return self._draft(message, session=session) if message.k else None

    def close(self, message: Close, /, *, connection: int) -> None:
        self._drop((connection, message.request_id))

    def close_connection(self, connection: int, /) -> None:
        """Forgets everything one connection opened."""
        for key in [key for key in self._sessions if key[0] == connection]:
            self._drop(key)

    def publish(self) -> None:
        """Brings the gauges up to date. Apart from the rest, because once per batch is often enough."""
        self._metrics.set(SESSIONS, value=len(self._sessions))
        self._metrics.set(TOKENS_HELD, value=self._tokens)

    def _append(self, message: AcceptedPrefix, *, session: _Session) -> bool:
        tokens = _as_array(message.token_ids)
        length = len(session.tokens)
        end = message.base_len + len(tokens)
        repeated = min(length, end) - message.base_len
        if repeated < 0 or end > self._limits.sequence:
            return False
        if repeated and session.tokens[message.base_len : message.base_len + repeated] != tokens[:repeated]:
            return False
        if end > length:
            session.tokens.extend(tokens[repeated:])
            self._tokens += end - length
            news = AcceptedPrefix(
                request_id=session.scoped_id,
                base_len=length,
                token_ids=message.token_ids[repeated:],
                accepted=message.accepted,
                generation=message.generation,
                k=message.k,
                features=message.features,
            )
            self._strategy.commit(news)
        return True

    def _draft(self, message: AcceptedPrefix, *, session: _Session) -> DraftBlock:
        proposal = self._strategy.propose(session.scoped_id, k=message.k)
        return DraftBlock(
            request_id=message.request_id,
            base_len=len(session.tokens),
            generation=message.generation,
            token_ids=proposal.token_ids,
            parents=proposal.parents,
        )

    def _make_room(self) -> None:
        # The newest always stays: `sequence` bounds it, and dropping it would make its verifier open it for nothing.
        while len(self._sessions) > 1 and (
            len(self._sessions) > self._limits.sessions or self._tokens > self._limits.tokens
        ):
            self._drop(next(iter(self._sessions)))
            self._metrics.add(EVICTED)

    def _drop(self, key: SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._tokens -= len(session.tokens)
            self._strategy.close(session.scoped_id)


def _as_array(token_ids: tuple[int, ...]) -> array[int]:
    try:
        return array("I", token_ids)
    except OverflowError as error:
        raise ProtocolError("a token id is negative or over 32 bits") from error
