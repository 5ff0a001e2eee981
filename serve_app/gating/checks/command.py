"""`outrider gate run` from options to records: checks the options, loads, measures, shows, and then writes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deployments.messages.errors import ConfigError
from deployments.verifier.loading import LoadedModel, load_model
from serve_app.config import AppConfig
from serve_app.gating.checks.asked import MIXTURE, check_prompts, read_questions
from serve_app.gating.checks.check import FULL, QUICK, Outcome, run_check
from serve_app.gating.checks.drafters import CheckedDrafter, chip_drafter, remote_drafter
from serve_app.gating.checks.plot import check_plot, draw_plot
from serve_app.gating.checks.tables import TABLE_WIDTH, tables
from serve_app.gating.checks.terminal import TerminalSteps
from serve_app.gating.encoding import encode_gates
from serve_app.gating.records import Reason, Record
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStore, GateStoreError
from serve_app.model_fetch import resolve_model


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What `outrider gate run` was asked.

    Attributes:
        numbers: of active slots.
        tokens: the most of a reply; `None` takes what the effort says.
    """

    kinds: tuple[str, ...]
    numbers: tuple[int, ...]
    prompts: str = MIXTURE
    tokens: int | None = None
    is_quick: bool = False
    plot: Path | None = None


def run_gate(config: AppConfig, /, *, options: CheckOptions, store: GateStore) -> bool:
    """Checks, shows and writes; says whether all kinds passed.

    Args:
        config: whose choice of drafters has all kinds asked for.

    Raises:
        ConfigError: no prompt fits the context, or there is no such model.
        CheckpointError: the model cannot be loaded.
        GateStoreError: the records could not be written; they are on standard output.
    """
    config = config.model_copy(update={"model": str(resolve_model(config.model).absolute())})
    efforts = QUICK if options.is_quick else FULL
    with TerminalSteps() as steps:
        asked = read_questions(
            options.prompts,
            model=config.model,
            tokens=options.tokens or efforts.tokens,
            context=config.verifier.context,
        )
        model = load_model(config.verifier_settings().model, progress=steps.say)
        outcome = run_check(
            model,
            drafters=_drafters(config, model=model, kinds=options.kinds),
            asked=asked,
            numbers=options.numbers,
            efforts=efforts,
            steps=steps,
            least_gain=config.gates.least_gain,
        )
    _show(outcome.records, least_gain=config.gates.least_gain)
    save(outcome, store=store)
    if options.plot is not None:
        draw_plot(options.plot, profits=outcome.profits)
    return outcome.has_passed


def check_options(options: CheckOptions, /, *, slots: int) -> None:
    """Finds out now, not after ten minutes, what cannot be done.

    Args:
        slots: of the verifier.

    Raises:
        ConfigError: something cannot.
    """
    check_prompts(options.prompts)
    if min(options.numbers) > slots:
        raise ConfigError(f"the verifier has {slots} slots; give --slots fewer, or raise verifier.slots")
    if options.plot is not None:
        check_plot(options.plot)


def save(outcome: Outcome, /, *, store: GateStore) -> None:
    """Writes the records.

    What ended with an error takes no measurement's place.

    Raises:
        GateStoreError: the store cannot be written; the records are on standard output then, as a `file:` store.
    """
    gates = store.load()
    known = {record.id for record in gates.records}
    try:
        for record in outcome.records:
            if record.reason is not Reason.FAILED or record.id not in known:
                store.put(record)
    except GateStoreError:
        print(encode_gates(Snapshot.of(outcome.records, revision=0)))
        raise


def parse_numbers(text: str, /) -> tuple[int, ...]:
    """Numbers as in `1,2,4`, rising, each once. Raises `ConfigError`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--slots {text} must be numbers from 1, as in 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def parse_kinds(text: str, /) -> tuple[str, ...]:
    """Kinds of drafters as in `ngram,mtp`, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _drafters(config: AppConfig, *, model: LoadedModel, kinds: Sequence[str]) -> list[CheckedDrafter]:
    choices = {choice.kind: choice for choice in config.drafter_choices()}
    return [
        chip_drafter(choices[kind], model=model)
        if choices[kind].placement == "chip"
        else remote_drafter(
            choices[kind],
            vocabulary=model.config.vocabulary,
            draft_k=model.settings.draft_k,
            deadline_s=config.verifier.draft_deadline_ms / 1e3,
        )
        for kind in kinds
    ]


def _show(records: Sequence[Record], *, least_gain: float) -> None:
    # A file or a pipe has no width of its own, and the tables need more than the 80 columns it would be given.
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    console.print(tables(records, least_gain=least_gain))
