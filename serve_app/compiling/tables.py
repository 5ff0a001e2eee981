"""A report as tables for a terminal."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.compiling.report import Report

_MIB, _GIB, _GB, _G = 2**20, 2**30, 10**9, 10**9


def tables(report: Report, /) -> Group:
    """All of it."""
    return Group(*_parts(report))


def verdict(report: Report, /) -> str:
    """Whether it fits, in a sentence, and what would if it does not."""
    fit = report.fit
    what = f"{report.model} in {report.precision}, {report.slots} slots x {report.context} tokens"
    refused = sum(one.refusal is not None for one in report.programs)
    if fit.fits and refused:
        return f"{what}: {refused} of {len(report.programs)} programs do not compile for {report.chip}"
    if fit.fits:
        return f"{what}: fits {report.chip}"
    short = f"{what}: does not fit {report.chip}: {_gib(fit.needed)} are needed of {_gib(fit.usable)} on each device"
    wider = [f"on this slice {option}" for option in _room(report)]
    if report.would_hold:
        wider.append(f"as it is {', '.join(report.would_hold)}")
    return f"{short}; what would fit: {'; '.join(wider)}" if wider else f"{short}; no slice known here would hold it"


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(verdict(report))
    yield _memory(report)
    if report.programs:
        yield _programs(report)
    if report.estimates:
        yield _moved(report)
        yield _done(report)
        yield _speeds(report)
    if report.checks:
        yield _checks(report)
    if report.guessed:
        yield Text(f"loops whose length depends on data count once: {', '.join(report.guessed)}")
    yield f"compiled with {', '.join(f'{name} {number}' for name, number in report.packages.items())}"


def _memory(report: Report) -> Table:
    fit = report.fit
    table = _table("memory of each device", left=("what",), right=("GiB",))
    rows = {
        "weights": fit.resident.weights,
        "cache": fit.resident.pages,
        "recurrent states": fit.resident.states,
        **({"temporaries, the most": fit.temporaries, "programs": fit.code} if report.programs else {}),
        "needed": fit.needed,
        f"usable, less a reserve of {fit.reserve // _MIB} MiB": fit.usable,
    }
    for name, count in rows.items():
        table.add_row(name, f"{count / _GIB:.2f}")
    for option in _room(report):
        table.add_row(f"would fit: {option}", "")
    return table


def _room(report: Report) -> list[str]:
    fit = report.fit
    options = []
    if fit.context:
        options.append(f"{report.slots} slots x {fit.context} tokens")
    if fit.slots:
        options.append(f"{fit.slots} slots x {report.context} tokens")
    return options


def _programs(report: Report) -> Table:
    table = _table("programs, on each device", left=("program",), right=("compiled in", "temporaries", "code"))
    for one in report.programs:
        if one.refusal is None:
            table.add_row(one.name, f"{one.seconds:.1f} s", _mib(one.temporaries), _mib(one.code))
        else:
            table.add_row(Text(f"{one.name}: {one.refusal}"), "not", "-", "-")
    return table


def _moved(report: Report) -> Table:
    title = f"windows on each device: estimates, every slot at position {report.position}"
    moved = ("rows", "slots x rows", "weights GB", "HBM/weights", "attention GB", "states GB")
    table = _table(title, left=(), right=moved)
    for one in report.estimates:
        table.add_row(
            str(one.rows),
            f"{one.slots} x {one.rows_each}",
            f"{one.weights / _GB:.2f}",
            f"{one.moved / one.weights:.3f}",
            f"{one.attention / _GB:.3f}",
            f"{one.states / _GB:.3f}",
        )
    return table


def _done(report: Report) -> Table:
    title = "the same windows: what is done; ms are estimates"
    table = _table(title, left=(), right=("rows", "Gop int8", "bf16", "sum/max/other", "bound by", "ms"))
    for one in report.estimates:
        table.add_row(
            str(one.rows),
            f"{one.int8 / _G:.0f}",
            f"{one.bf16 / _G:.0f}",
            f"{one.sums}/{one.maxima}/{one.exchanges}",
            one.bound,
            f"{one.seconds * 1000:.2f}",
        )
    return table


def _speeds(report: Report) -> Table:
    title = "tokens a second: estimates, without host, drafter and vectors' work"
    table = _table(title, left=("tokens a window",), right=("drafts", "one stream", f"{report.slots} streams"))
    for one in report.speeds:
        name = f"{one.tokens}, plain" if not one.drafts else str(one.tokens)
        table.add_row(name, str(one.drafts), f"{one.one:.1f}", f"{one.all:.1f}")
    return table


def _checks(report: Report) -> Table:
    table = _table("figures and their limits", left=("figure",), right=("is", "at most", "holds"))
    for one in report.checks:
        table.add_row(one.name, f"{one.value:.3g}", f"{one.limit:.3g}", "yes" if one.holds else "no")
        for line in one.blame if not one.holds else ():
            table.add_row(Text(f"  {line}"), "", "", "")
    return table


def _table(title: str, *, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"


def _mib(count: int) -> str:
    return f"{count / _MIB:.1f} MiB"
