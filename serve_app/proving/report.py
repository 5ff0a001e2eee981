"""What a proof found: a row per configuration, a table for people, and whether it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from serve_app.proving.comparison import Comparison, Replies, compare

TABLE_WIDTH = 110
"""Columns of text that the table takes."""

_SURE_TO_DRAFT = ("random", "oracle")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration.

    Attributes:
        drafter: its kind, with the most drafts where there are several.
        company: what else was in the batch.
        mode: how tokens were drawn.
        comparison: `None` for the plain replies that others are compared with.
    """

    drafter: str
    company: str
    mode: str
    comparison: Comparison | None
    drafts: int
    accepted: int
    seconds: float

    @property
    def line(self) -> str:
        """The row as a sentence, to follow a run by."""
        seen = self.comparison
        found = "plain replies" if seen is None else f"{seen.tokens} tokens compared, {seen.mismatches} differ"
        return (
            f"{self.drafter}, {self.company}, {self.mode}: {found}; {self.accepted} of {self.drafts} drafts accepted; "
            f"{self.seconds:.0f} s"
        )

    @property
    def problem(self) -> str | None:
        """Why this row proves nothing, or the opposite; `None` when all is well."""
        where = f"{self.drafter}, {self.company}, {self.mode}"
        if self.comparison is not None and self.comparison.first is not None:
            return f"{where}: {self.comparison.first}"
        if self.drafter in _SURE_TO_DRAFT and not self.drafts:
            return f"{where}: no draft was verified, so nothing was proved; is the drafter reachable?"
        if self.drafter == "oracle" and self.accepted < self.drafts:
            return f"{where}: {self.drafts - self.accepted} of {self.drafts} right drafts were refused"
        return None


def row_of(replies: Replies, /, *, plain: Replies | None, drafter: str, company: str, mode: str, seconds: float) -> Row:
    """The row for these replies."""
    return Row(
        drafter=drafter,
        company=company,
        mode=mode,
        comparison=None if plain is None else compare(replies, plain=plain),
        drafts=sum(reply.statistics.draft_n for reply in replies.values()),
        accepted=sum(reply.statistics.draft_n_accepted for reply in replies.values()),
        seconds=seconds,
    )


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All rows of one run."""

    rows: Sequence[Row]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in the order it was found; none if the proof holds."""
        found = [problem for row in self.rows if (problem := row.problem) is not None]
        if not any(row.drafts for row in self.rows if row.drafter.startswith("ngram")):
            found.append("ngram: no draft was verified in any configuration, so nothing was proved")
        return tuple(found)

    @property
    def summary(self) -> str:
        """The line that counts."""
        compared = [row.comparison for row in self.rows if row.comparison is not None]
        tokens, mismatches = sum(item.tokens for item in compared), sum(item.mismatches for item in compared)
        return f"tokens compared: {tokens}, mismatches: {mismatches}"

    def table(self, title: str, /) -> Table:
        """All rows."""
        table = Table(title=title, title_justify="left")
        for heading in ("drafter", "in the batch", "drawn"):
            table.add_column(heading, no_wrap=True)
        for heading in ("requests", "compared", "mismatches", "drafts", "accepted", "seconds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            seen = row.comparison
            counts = ("-", "-", "-") if seen is None else (str(seen.replies), str(seen.tokens), str(seen.mismatches))
            table.add_row(
                row.drafter, row.company, row.mode, *counts, str(row.drafts), str(row.accepted), f"{row.seconds:.1f}"
            )
        return table
