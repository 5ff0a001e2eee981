"""The comparison as tables for a terminal. Knows how to word the figures, not how they came about."""

from rich.console import Group, RenderableType
from rich.table import Table

from serve_app.benchmark.alternation import Spread
from tests.bench.comparison import Comparison


def tables(comparison: Comparison, /) -> Group:
    """What it was measured on, the peer's settings, and both sides; a figure is a median."""
    return Group(
        _facts(comparison),
        _trials(comparison),
        *([_results(comparison)] if comparison.results else []),
        f"medians of alternating runs, [dim]smallest .. largest[/]; measured in {comparison.seconds:.0f} s",
    )


def _facts(comparison: Comparison) -> RenderableType:
    machine = comparison.machine
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    table = Table(title="Measured on", show_header=False, title_justify="left")
    table.add_row("machine", f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:.0f} GiB{load}")
    table.add_row("software", f"{machine.system}, Python {machine.python}, jax {machine.jax}, ray {machine.ray}")
    table.add_row("model", f"{comparison.model}; Outrider computes in {comparison.precision}")
    table.add_row("llama-server", comparison.peer)
    return table


def _trials(comparison: Comparison) -> RenderableType:
    table = _table("llama-server alone", "case", "settings", "first figure", "second", "accepted", "")
    for trial in comparison.trials:
        values = [_value(value) for value in trial.values]
        table.add_row(
            trial.case,
            trial.variant,
            *(*values, *[""] * (2 - len(values))),
            f"{trial.acceptance:.0%}" if trial.acceptance else "",
            "best" if trial.is_best else "",
        )
    return table


def _results(comparison: Comparison) -> RenderableType:
    table = _table(
        "Outrider and llama-server at its best", "case", "figure", "Outrider", "llama-server", "ratio", "wanted"
    )
    for result in comparison.results:
        sign = "<=" if result.unit == "s" else ">="
        table.add_row(
            result.case,
            f"{result.figure}, {result.unit}",
            _value(result.ours),
            _value(result.peer),
            _value(result.ratio),
            f"{sign} {result.wanted}{'' if result.is_met else '  missed'}",
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    return table


def _value(value: Spread) -> str:
    """Three significant digits from a first token's milliseconds to many streams' tokens per second."""
    median, least, most = (
        f"{each:.1f}" if each >= 10 else f"{each:.3f}" for each in (value.median, value.least, value.most)
    )
    return median if value.runs == 1 else f"{median} [dim]{least} .. {most}[/]"
