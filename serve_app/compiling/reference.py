"""The table of docs/reference/chips.md, from what `outrider compile --json` printed: a row for each file.

`python -m serve_app.compiling.reference FILE...` prints it; with `--write` it replaces the one in the document.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from deployments.messages.errors import ConfigError, OutriderError
from serve_app.compiling.report import Estimate, Report

DOCUMENT = Path("docs/reference/chips.md")
BEGIN, END = "<!-- begin: outrider compile -->", "<!-- end: outrider compile -->"
_GIB = 2**30
_COLUMNS = (
    *("model", "slice", "programs", "GiB needed / usable", "room for", "temporaries / weights", "HBM / weights"),
    *("ms, 8 rows", "64 rows / 8 rows", "bound by", "per layer", "tok/s plain: 1, all", "tok/s at 3: 1, all"),
)


def read_report(path: Path, /) -> Report:
    """Raises `ConfigError` if there is none in the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is not what 'outrider compile --json' prints: {error}") from error


def table_of(reports: Iterable[Report], /) -> str:
    """As Markdown."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *map(_row, reports)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replaced(text: str, *, table: str) -> str:
    """The document with another table. Raises `ConfigError` if it has no place for one."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ConfigError(f"{DOCUMENT} has no lines '{BEGIN}' and '{END}' to put the table between")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _row(report: Report) -> tuple[str, ...]:
    fit = report.fit
    compiled = sum(one.refusal is None for one in report.programs)
    by_rows = {one.rows: one for one in report.estimates}
    narrow, wide = by_rows.get(8), by_rows.get(64)
    checks = {one.name: one.value for one in report.checks}
    return (
        report.model,
        report.chip,
        f"{compiled} of {len(report.programs)}" if report.programs else "none: no room",
        f"{fit.needed / _GIB:.2f} / {fit.usable / _GIB:.2f}",
        f"{report.slots} x {fit.context}" if fit.context else "nothing",
        f"{100 * checks['temporaries / weights']:.2f} %" if narrow else "",
        f"{narrow.moved / narrow.weights:.3f}" if narrow else "",
        f"{1000 * narrow.seconds:.2f}" if narrow else "",
        f"{wide.seconds / narrow.seconds:.2f}" if narrow and wide else "",
        narrow.bound if narrow else "",
        _exchanges(checks, narrow=narrow),
        _speed(report, drafts=False, tokens=1),
        _speed(report, drafts=True, tokens=3),
    )


def _exchanges(checks: dict[str, float], *, narrow: Estimate | None) -> str:
    sums, maxima = (checks.get(f"{kind} over devices / layer") for kind in ("sums", "maxima"))
    if narrow is None or sums is None or maxima is None:
        return ""
    return f"{sums:.2f} sums, {maxima:.2f} maxima"


def _speed(report: Report, *, drafts: bool, tokens: int) -> str:
    found = (one for one in report.speeds if bool(one.drafts) == drafts and one.tokens == tokens)
    one = next(found, None)
    return "" if one is None else f"{one.one:.0f}, {one.all:.0f}"


def main(
    files: Annotated[list[Path], typer.Argument(help="What 'outrider compile --json' printed.")],
    *,
    write: Annotated[bool, typer.Option("--write", help=f"Replace the table in {DOCUMENT}.")] = False,
) -> None:
    """Make the table."""
    try:
        table = table_of(map(read_report, files))
        if write:
            DOCUMENT.write_text(replaced(DOCUMENT.read_text(), table=table))
        else:
            print(table)
    except FileNotFoundError:
        sys.exit(f"outrider: there is no {DOCUMENT} here; run this in the project's folder")
    except OutriderError as error:
        sys.exit(f"outrider: {error}")


if __name__ == "__main__":
    typer.run(main)
