"""What a check found as tables and bars for a terminal. Knows how to word figures, not how they came about."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.gating.evidence import ProfitEvidence, ProfitPoint
from serve_app.gating.policy import LEAST_GAIN, limits
from serve_app.gating.records import ExactnessRecord, ProfitRecord, Record

TABLE_WIDTH = 118
"""Columns of text that the tables take."""

_BAR = 48


def tables(records: Sequence[Record], /, *, least_gain: float = LEAST_GAIN) -> Group:
    """Everything about these records, each with its verdict below."""
    parts: list[RenderableType] = []
    for record in records:
        if isinstance(record, ExactnessRecord):
            parts += _exactness(record)
        else:
            parts += _profit(record, least_gain=least_gain)
    return Group(*parts)


def verdict_line(record: Record, /) -> str:
    """What came of it, and why."""
    what = "exactness" if isinstance(record, ExactnessRecord) else f"profit of {record.key.drafter.kind}"
    return f"{what}: {record.verdict_text}" + (f"; {record.detail}" if record.detail else "")


def follows(record: ProfitRecord, /, *, least_gain: float = LEAST_GAIN) -> str:
    """What a service does with this evidence, if nothing else speaks against it."""
    slots = record.key.program.slots
    allowed = limits(record.evidence, slots=slots, k_max=record.key.k_max, least_gain=least_gain)
    if not record.has_passed or not any(allowed):
        return "nothing is drafted"
    parts = [f"K {k} at {_span(begin, end)}" for begin, end, k in _runs(allowed)]
    return f"drafts by active slots: {', '.join(parts)}"


def bars(evidence: ProfitEvidence, /) -> Iterator[str]:
    """Speed-up against active slots; the mark is where both are equally fast."""
    most = max((point.ratio.median for point in evidence.points), default=1.0)
    scale = _BAR / max(most, 1.0)
    even = round(scale)
    for point in evidence.points:
        bar = "█" * round(point.ratio.median * scale)
        marked = bar.ljust(_BAR)
        marked = f"{marked[: even - 1]}│{marked[even:]}"
        yield f"{point.active:>4} {marked} {point.ratio.median:.2f}"


def _exactness(record: ExactnessRecord) -> Iterator[RenderableType]:
    evidence = record.evidence
    table = _table("Tokens compared with plain replies", "drafts", "tokens", "differ", "drafted", "accepted")
    for name, proof in evidence.drafters.items():
        numbers = (proof.tokens, proof.mismatches, proof.drafts, proof.accepted)
        table.add_row(name, *map(str, numbers))
    if evidence.drafters:
        yield table
    if evidence.rungs:
        yield _plain(f"windows that compute the same bits: {', '.join(map(str, evidence.rungs))} rows")
    for rows, reason in evidence.refused.items():
        yield _plain(f"windows of {rows} rows are not used: {reason}")
    yield _plain(verdict_line(record))


def _profit(record: ProfitRecord, *, least_gain: float) -> Iterator[RenderableType]:
    points = record.evidence.points
    title = f"Tokens per second with {record.key.drafter.kind}"
    table = _table(title, "active", "K", "plain", "speculative", "ratio", "kept by place", "window ms", "drafter ms")
    for point in points:
        table.add_row(*_cells(point))
    if points:
        yield table
        yield _plain("Speed-up against active slots\n" + "\n".join(bars(record.evidence)))
    yield _plain(verdict_line(record))
    yield _plain(follows(record, least_gain=least_gain))


def _cells(point: ProfitPoint) -> tuple[str, ...]:
    ratio = point.ratio
    return (
        str(point.active),
        str(point.k),
        f"{point.plain_tokens_s:.1f}",
        f"{point.speculative_tokens_s:.1f}",
        f"{ratio.median:.2f} ({ratio.min:.2f} .. {ratio.max:.2f}, {point.pairs})",
        " ".join(f"{share:.0%}" for share in point.acceptance),
        f"{point.plain_window_ms:.1f} -> {point.window_ms:.1f}",
        f"{point.drafter_ms:.2f}",
    )


def _runs(allowed: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of equal K, each with its first and last number of active slots; those with 0 are left out."""
    begin = 1
    for active in range(1, len(allowed) + 1):
        if active == len(allowed) or allowed[active] != allowed[begin - 1]:
            if allowed[begin - 1]:
                yield begin, active, allowed[begin - 1]
            begin = active + 1


def _span(begin: int, end: int) -> str:
    return str(begin) if begin == end else f"{begin} to {end}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _plain(text: str) -> Text:
    return Text(text, no_wrap=False)
