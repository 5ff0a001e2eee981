"""Everything `outrider bench` found, as one record and as JSON. All times in seconds."""

from dataclasses import dataclass

import orjson

from serve_app.benchmark.alternation import Spread
from serve_app.benchmark.draws import DrawResult
from serve_app.benchmark.exchange import ExchangeResult
from serve_app.benchmark.host import HostResult
from serve_app.benchmark.machine import MachineFacts
from serve_app.benchmark.processes import IdleResult
from serve_app.benchmark.service import FirstTokenResult, HaltedDrafterResult, SpeedResult
from serve_app.benchmark.windows import WindowResult


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was measured."""

    model: str
    precision: str
    slots: int
    context: int
    draft_k: int
    is_quick: bool


@dataclass(frozen=True, kw_only=True)
class ServiceReport:
    """Over HTTP, against the running graph. `None` where this system has no /proc to find processes with."""

    speeds: tuple[SpeedResult, ...]
    first_tokens: tuple[FirstTokenResult, ...]
    halted_drafter: HaltedDrafterResult | None
    idle: IdleResult | None


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """In one process, without Ray; the drafter in a second one.

    Attributes:
        wait: seconds that the engine's thread spent on drafts, per round.
    """

    windows: tuple[WindowResult, ...]
    draws: tuple[DrawResult, ...]
    host: HostResult
    exchange: ExchangeResult
    wait: Spread


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the benchmark; `seconds` is how long it took."""

    machine: MachineFacts
    subject: Subject
    service: ServiceReport
    process: ProcessReport
    seconds: float

    def to_json(self) -> bytes:
        """All of it, with the field names of the records."""
        return orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
