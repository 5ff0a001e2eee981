"""A thread that does one thing until it is told to stop. A defect in that thing is logged, and does not end it."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)
_PAUSE_S = 1.0


class Watching:
    """The thread that watches a store.

    Args:
        work: gets the event that ends it, and looks at it often.
        pause_s: seconds before work that failed begins again.
    """

    def __init__(self, work: Callable[[threading.Event], None], /, *, name: str, pause_s: float = _PAUSE_S) -> None:
        self._work = work
        self._name = name
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gates {name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended; at once where it stops itself."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._work(self._over)
            except Exception:
                _log.exception("watching %s failed; it begins again", self._name)
                self._over.wait(self._pause_s)
