"""`outrider compile`: from options to tables or JSON on standard output. Progress is on stderr; chips are let alone."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from deployments.messages.errors import ConfigError
from serve_app.compiling.chips import Slice, slice_named

if TYPE_CHECKING:
    from serve_app.compiling.blueprints import Subject
    from serve_app.compiling.report import Report
    from serve_app.compiling.windows import Programs

_WIDTH = 120
_SHAPES = (".yaml", ".yml", ".json")
_KNOWN = Path(__file__).parent / "shapes"


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What `outrider compile` was asked."""

    chip: str
    model: str
    precision: str
    slots: int
    context: int
    draft_k: int
    drafts_on_chip: bool = False
    as_json: bool = False
    page_size: int = 64
    ladder: tuple[int, ...] = (8, 16, 32, 64, 128)


def run_command(options: CompileOptions, /) -> bool:
    """Compiles, prints, and says whether all is well: it fits, and every program was compiled.

    Raises:
        ConfigError, CheckpointError: the slice is not known, or the model is not one, or not as is wanted.
    """
    if sys.stdout is None:
        raise ConfigError("there is no standard output to print the report to; leave it open")
    with _ends_at_once():
        report = compile_model(options)
    try:
        _print(report, as_json=options.as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"the report cannot be written to standard output ({error}); give it another file") from error
    return report.is_sound


def _print(report: "Report", *, as_json: bool) -> None:
    if as_json:
        print(report.to_json().decode())
        return
    from serve_app.compiling.tables import tables

    # A file or a pipe has no width of its own.
    Console(width=None if sys.stdout.isatty() else _WIDTH, emoji=False).print(tables(report))


@contextmanager
def _ends_at_once() -> Iterator[None]:
    """Ctrl-C and a polite kill end the process. The compiler's threads would go on to the end of what they were given,
    and nothing is lost that could be kept."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    if sys.stderr is not None:
        shown = "\x1b[?25h\n" if sys.stderr.isatty() else ""
        print(f"{shown}outrider: stopped before everything was compiled", file=sys.stderr, flush=True)
    os._exit(128 + number)


def compile_model(options: CompileOptions, /) -> "Report":
    """The report on one model and slice. Raises as `run_command` does."""
    on = slice_named(options.chip)
    leave_devices_alone()
    from serve_app.compiling.report import fits_at_all, report_of

    subject = _subject(options, on=on)
    return report_of(subject, programs=_compiled(subject) if fits_at_all(subject) else {})


def leave_devices_alone() -> None:
    """Chips of this machine belong to whoever serves; to be called before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _subject(options: CompileOptions, *, on: Slice) -> "Subject":
    from deployments.lm.quant.linear import Precision
    from serve_app.compiling.blueprints import Wanted, check_compiler, open_model, subject_of

    check_compiler()
    if options.drafts_on_chip and not options.draft_k:
        raise ConfigError("--placement chip drafts on the chip, and --draft-k 0 drafts nothing; leave out one of them")
    wanted = Wanted(
        precision=Precision(options.precision),
        slots=options.slots,
        context=options.context,
        page_size=options.page_size,
        draft_k=options.draft_k,
        ladder=options.ladder,
        drafts_on_chip=options.drafts_on_chip,
    )
    return subject_of(open_model(_path(options.model)), wanted=wanted, on=on)


def _path(model: str) -> Path:
    from serve_app.model_fetch import resolve_model

    path = Path(model)
    if path.suffix.lower() not in _SHAPES:
        # The shape of a model that has a name is here, and need not be fetched.
        known = next((one for one in _KNOWN.glob("*.yaml") if one.stem == model.lower()), None)
        return resolve_model(model) if known is None or path.exists() else known
    if not _is_file(path):
        raise ConfigError(f"there is no file {model}; --model is a model, a name, or a file with the shape of one")
    return path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name longer than any file's.
        return False


def _compiled(subject: "Subject") -> "Programs":
    from deployments.verifier.ahead import compile_for

    sizes = subject.blueprint.sizes
    rounds = () if sizes.rounds is None else sizes.rounds.sizes
    total = len(sizes.ladder.rungs) + len(sizes.ladder.emits) + len(rounds)
    with _bar(f"{subject.name} for {subject.on.name}", total=total) as advance:
        return compile_for(subject.blueprint, progress=advance)


@contextmanager
def _bar(name: str, *, total: int) -> "Iterator[_Advance]":
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=sys.stderr is not None, quiet=sys.stderr is None)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Advance(progress, task=progress.add_task(name, total=total), is_quiet=console.is_terminal)


class _Advance:
    """Moves the bar on a terminal, and prints a line elsewhere."""

    def __init__(self, progress: Progress, *, task: TaskID, is_quiet: bool) -> None:
        self._progress = progress
        self._task = task
        self._is_quiet = is_quiet

    def __call__(self, text: str) -> None:
        self._progress.update(self._task, advance=1)
        if not self._is_quiet and sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
