"""Guesses from a file of finished sequences: a drafter that is always right, to prove full acceptance.

Used by the exactness checks and gates: what a plain run produced is written to the file, and a second run must accept
all of it. It knows no model; a sequence the file does not hold gets no guess.
"""

import logging
import os
from dataclasses import dataclass

import msgspec

from deployments.lm.drafting.strategy import DraftShape, Proposal, StrategyTraits
from deployments.messages.drafting import AcceptedPrefix, Open
from deployments.messages.errors import ConfigError

type Sequences = tuple[tuple[int, ...], ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleSettings:
    """`path` names a JSON file: a list of complete sequences (prompt and reply), each a list of token ids.

    The file is read again when it has changed, at the next request that opens; `[]` is a good beginning.
    """

    path: str
    max_k: int = 8

    def __post_init__(self) -> None:
        if self.max_k < 1:
            raise ConfigError("an oracle drafter needs a max_k of at least 1")


@dataclass(slots=True)
class _Reading:
    """How far one request has come, and the sequences that agree with all of it so far."""

    length: int
    candidates: Sequences


class OracleStrategy:
    """Proposes what follows the request's tokens in the first sequence of the file that begins with them.

    Raises:
        ConfigError: the file cannot be read when the drafter is built. Later, the last good version stays.
    """

    def __init__(self, settings: OracleSettings, /) -> None:
        self._path = settings.path
        self._stamp = _stamp(settings.path)
        self._sequences = _load(settings.path)
        self._readings: dict[str, _Reading] = {}
        self.traits = StrategyTraits(kind="oracle", shape=DraftShape.CHAIN, needs_features=False, max_k=settings.max_k)

    def open(self, message: Open, /) -> None:
        self._refresh()
        reading = _Reading(length=0, candidates=self._sequences)
        self._readings[message.request_id] = reading
        _advance(reading, token_ids=message.prompt_ids)

    def commit(self, message: AcceptedPrefix, /) -> None:
        _advance(self._readings[message.request_id], token_ids=message.token_ids)

    def propose(self, request_id: str, /, *, k: int) -> Proposal:
        reading = self._readings[request_id]
        if not reading.candidates:
            return Proposal(token_ids=())
        end = reading.length + min(k, self.traits.max_k)
        return Proposal(token_ids=reading.candidates[0][reading.length : end])

    def close(self, request_id: str, /) -> None:
        self._readings.pop(request_id, None)

    def _refresh(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._sequences = _load(self._path)
            self._stamp = stamp
        except ConfigError as error:
            _log.warning("keeping the last good oracle file: %s", error)


def _advance(reading: _Reading, *, token_ids: tuple[int, ...]) -> None:
    begin, end = reading.length, reading.length + len(token_ids)
    reading.candidates = tuple(one for one in reading.candidates if one[begin:end] == token_ids)
    reading.length = end


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(f"the oracle file {path} cannot be read ({error.strerror}); write a JSON list") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load(path: str) -> Sequences:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=tuple[tuple[int, ...], ...])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the oracle file {path} is not a JSON list of lists of token ids: {error}") from error
