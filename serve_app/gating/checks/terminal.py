"""How far a check is, as bars in a terminal, or as lines where there is none. Knows nothing of checks."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class TerminalSteps:
    """`Steps` on standard error; one bar for each part, which stays when the part is over."""

    def __init__(self, *, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<36}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_part()
        self._progress.stop()

    def begin(self, title: str, /, *, total: int) -> None:
        """Begins a bar."""
        self._end_part()
        if self._console.is_terminal:
            self._task = self._progress.add_task(title, total=total)
        else:
            self.say(title)

    def advance(self, count: int = 1, /) -> None:
        """Moves the bar."""
        if self._task is not None:
            self._progress.advance(self._task, count)

    def say(self, text: str, /) -> None:
        """Prints a line above the bars."""
        self._progress.console.print(
            f"{time.monotonic() - self._started:5.0f} s  {text}", highlight=False, markup=False
        )

    def _end_part(self) -> None:
        if self._task is not None:
            done = self._progress.tasks[self._task].completed
            self._progress.update(self._task, total=done, completed=done)
            self._progress.stop_task(self._task)
            self._task = None
