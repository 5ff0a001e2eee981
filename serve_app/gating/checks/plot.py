"""Speed-up against active slots as a picture. Knows matplotlib, where there is one."""

from collections.abc import Sequence
from pathlib import Path

from deployments.messages.errors import ConfigError
from serve_app.gating.records import ProfitRecord


def check_plot(path: Path, /) -> None:
    """Finds out before the measurement whether there will be a picture after it.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be imported is the question
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib; install it with 'pip install outrider[plot]'") from error
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot writes a .png, and {path.name} is none")
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror or error}); give --plot another path") from error


def draw_plot(path: Path, /, *, profits: Sequence[ProfitRecord]) -> None:
    """Writes the picture: the median ratios, and the smallest and largest as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for record in profits:
        points = record.evidence.points
        active = [point.active for point in points]
        (line,) = axes.plot(active, [point.ratio.median for point in points], marker="o", label=_label(record))
        axes.fill_between(
            active,
            [point.ratio.min for point in points],
            [point.ratio.max for point in points],
            color=line.get_color(),
            alpha=0.2,
        )
        for point in points:
            axes.annotate(f"K {point.k}", (point.active, point.ratio.median), xytext=(4, 6), textcoords="offset points")
    axes.axhline(1.0, color="grey", linewidth=1.0, linestyle="--")
    ticks = sorted({point.active for record in profits for point in record.evidence.points})
    if ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.legend()
    highest = max((point.ratio.max for record in profits for point in record.evidence.points), default=1.0)
    # Room for the labels.
    axes.set_ylim(0.0, 1.15 * max(highest, 1.0))
    axes.set_xlabel("active slots")
    axes.set_ylabel("speculative over plain speed")
    figure.savefig(path, dpi=150, format="png")


def _label(record: ProfitRecord) -> str:
    return f"{record.key.drafter.kind} on {record.key.program.chip.kind}"
