"""How much may be in flight. Knows a number and a limit; the verifier keeps its own queue behind it."""

from collections.abc import Iterator
from contextlib import contextmanager

from deployments.ingress.counters import Counters
from deployments.messages.errors import QueueFull


class Admission:
    """Admits or refuses at once: a client that is told to come back can be served elsewhere meanwhile."""

    def __init__(self, *, limit: int, retry_after_s: int, counters: Counters) -> None:
        self._limit = limit
        self._retry_after_s = retry_after_s
        self._counters = counters
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @contextmanager
    def admit(self, choices: int, /) -> Iterator[None]:
        """Holds room for `choices` replies while the block runs.

        Raises:
            QueueFull: there is none.
        """
        if self._in_flight + choices > self._limit:
            raise QueueFull(
                f"{self._in_flight} replies are being generated and {self._limit} is the limit; "
                f"try again in {self._retry_after_s} s.",
                self._retry_after_s,
            )
        self._change(choices)
        try:
            yield
        finally:
            self._change(-choices)

    def _change(self, choices: int, /) -> None:
        self._in_flight += choices
        self._counters.in_flight(self._in_flight)
