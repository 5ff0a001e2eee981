"""`outrider bench`: from options to tables on standard output and, if wanted, a JSON file. Progress is on stderr."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from rich.console import Console

from deployments.messages.errors import ConfigError
from serve_app.benchmark.run import FULL, QUICK, run_benchmark
from serve_app.benchmark.tables import tables
from serve_app.config import AppConfig
from serve_app.model_fetch import resolve_model

_PAGE = 128
_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What `outrider bench` was asked."""

    is_quick: bool
    json_file: Path | None
    draft_k: int
    slots: int
    context: int
    precision: str


def run_command(model: str, /, *, options: BenchOptions) -> None:
    """Measures, writes the file, prints the tables.

    Raises:
        ConfigError: the options do not fit together, or the file cannot be written.
    """
    if options.context > _PAGE and options.context % _PAGE:
        raise ConfigError(f"--ctx {options.context} is not a multiple of {_PAGE}, the page size")
    if options.json_file is not None:
        # Now, not after ten minutes; what is in it stays until there is something better.
        _open(options.json_file, mode="ab").close()
    report = run_benchmark(
        _config(resolve_model(model), options=options), efforts=QUICK if options.is_quick else FULL, say=_say
    )
    if options.json_file is not None:
        with _open(options.json_file, mode="wb") as file:
            file.write(report.to_json())
    # A file or a pipe has no width of its own, and the tables need more than the 80 columns it would be given.
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(tables(report))


def _config(path: Path, *, options: BenchOptions) -> AppConfig:
    return AppConfig.model_validate(
        {
            "model": str(path.absolute()),
            "drafter": {"kind": "ngram", "reason": "outrider bench"},
            # Speculation is measured here also where it does not pay.
            "gates": {"store": ""},
            "verifier": {
                "slots": options.slots,
                "context": options.context,
                "precision": options.precision,
                "draft_k": options.draft_k,
                # Both sides of a comparison ask the same; whoever asks second would not have to read it.
                "prefix_cache": False,
            },
        }
    )


def _open(path: Path, *, mode: Literal["ab", "wb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror or error}); give --json another path") from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
