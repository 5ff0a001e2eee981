"""The report as tables for a terminal. Knows how to word the figures, not how they came about."""

from rich.console import Group, RenderableType
from rich.table import Table

from serve_app.benchmark.alternation import Spread
from serve_app.benchmark.draws import DrawResult
from serve_app.benchmark.report import ProcessReport, Report, ServiceReport


def tables(report: Report, /) -> Group:
    """All tables; a figure is a median, and what stands in brackets the smallest and the largest run."""
    return Group(
        _facts(report),
        _speeds(report.service),
        _waits(report.service, process=report.process),
        _windows(report.process),
        _draws(report.process),
        f"medians of alternating runs, [dim]smallest .. largest[/]; measured in {report.seconds:.0f} s",
    )


def _facts(report: Report) -> RenderableType:
    machine, subject = report.machine, report.subject
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    table = Table(title="Measured on", show_header=False, title_justify="left")
    table.add_row("machine", f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:.0f} GiB{load}")
    table.add_row("software", f"{machine.system}, Python {machine.python}, jax {machine.jax}, ray {machine.ray}")
    table.add_row("model", f"{subject.model}, {subject.precision}")
    table.add_row(
        "settings", f"{subject.slots} slots of {subject.context} tokens, at most {subject.draft_k} drafts a window"
    )
    return table


def _speeds(service: ServiceReport) -> RenderableType:
    table = _table("Tokens per second over HTTP", "prompts", "streams", "plain", "speculative", "ratio")
    for column in ("accepted", "one stream", "differing"):
        table.add_column(column, justify="right")
    for speed in service.speeds:
        table.add_row(
            speed.workload,
            str(speed.streams),
            f"{speed.plain.median:.1f}",
            f"{speed.speculative.median:.1f}",
            _ratio(speed.ratio),
            f"{speed.acceptance:.0%}",
            f"{speed.stream_plain.median:.1f} -> {speed.stream_speculative.median:.1f}",
            str(speed.differing),
        )
    halted = service.halted_drafter
    if halted is not None:
        table.add_row(
            f"{halted.workload}, drafter halted",
            str(halted.streams),
            f"{halted.plain.median:.1f}",
            f"{halted.halted.median:.1f}",
            _ratio(halted.ratio),
            "",
            "",
            str(halted.differing),
        )
    return table


def _waits(service: ServiceReport, *, process: ProcessReport) -> RenderableType:
    table = _table("Waiting, and what it costs to be ready", "", "median", "runs")
    for first in service.first_tokens:
        table.add_row(
            f"first token of a {first.prompt_tokens}-token prompt", _ms(first.seconds), str(first.seconds.runs)
        )
    exchange, host = process.exchange, process.host
    table.add_row(
        f"exchange with the drafter, {exchange.requests} requests", _ms(exchange.seconds), str(exchange.seconds.runs)
    )
    table.add_row("  what the engine spends on it", _ms(process.wait), str(process.wait.runs))
    table.add_row(f"host time of a window, {host.slots} slots", _ms(host.host), str(host.host.runs))
    table.add_row("  its share of the window", _percent(host.share), str(host.share.runs))
    idle = service.idle
    if idle is not None:
        parts = ", ".join(f"{role} {percent:.1f}" for role, percent in idle.percent.items())
        table.add_row(
            f"idle service, {idle.processes} processes", f"{idle.total_percent:.1f} % of a core ({parts})", "1"
        )
    return table


def _windows(process: ProcessReport) -> RenderableType:
    contexts = sorted({window.context for window in process.windows})
    table = _table("Layers of a full window", "rows", "tiles", *(f"at {context} tokens" for context in contexts))
    by_rung: dict[tuple[int, int], dict[int, Spread]] = {}
    for window in process.windows:
        by_rung.setdefault((window.rows, window.tiles), {})[window.context] = window.seconds
    for (rows, tiles), seconds in by_rung.items():
        table.add_row(str(rows), str(tiles), *(_ms(seconds[context]) for context in contexts))
    return table


def _draws(process: ProcessReport) -> RenderableType:
    samplers = list(dict.fromkeys(draw.sampler for draw in process.draws))
    table = _table("Drawing tokens: head and sampler, and the sampler's share of a window", "rows", "head", *samplers)
    by_rows: dict[int, list[DrawResult]] = {}
    for draw in process.draws:
        by_rows.setdefault(draw.rows, []).append(draw)
    for rows, draws in by_rows.items():
        cells = [f"{1e3 * draw.seconds.median:.2f} ms, {draw.share.median:.1%}" for draw in draws]
        table.add_row(str(rows), f"{1e3 * draws[0].head.median:.2f} ms", *cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _ratio(value: Spread) -> str:
    return _ranged(value, form="{:.2f}", unit="")


def _ms(value: Spread) -> str:
    return _ranged(value, form="{:.2f}", unit=" ms", scale=1e3)


def _percent(value: Spread) -> str:
    return _ranged(value, form="{:.1f}", unit=" %", scale=100.0)


def _ranged(value: Spread, *, form: str, unit: str, scale: float = 1.0) -> str:
    """The median, and the smallest and largest run where there were several."""
    median, least, most = (form.format(scale * each) for each in (value.median, value.least, value.most))
    return f"{median}{unit}" if value.runs == 1 else f"{median}{unit} [dim]{least} .. {most}[/]"
