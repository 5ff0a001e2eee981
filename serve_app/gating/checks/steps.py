"""How far a check is, for whoever watches. Knows no terminal."""

from typing import Protocol


class Steps(Protocol):
    """Told of every part of a check, one after the other."""

    def begin(self, title: str, /, *, total: int) -> None:
        """A part of so many steps begins; the one before it is over, also if it took fewer steps than it said."""

    def advance(self, count: int = 1, /) -> None:
        """So many steps are done."""

    def say(self, text: str, /) -> None:
        """Something worth a line of its own."""


class Unwatched:
    """`Steps` that nobody watches."""

    def begin(self, title: str, /, *, total: int) -> None:
        del title, total

    def advance(self, count: int = 1, /) -> None:
        del count

    def say(self, text: str, /) -> None:
        del text
