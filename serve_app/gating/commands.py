"""`outrider gate`: options and exit statuses. Wiring only; the work is in `operating` and `checks`."""

import getpass
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deployments.messages.errors import ConfigError

if TYPE_CHECKING:
    # Whoever asks another command waits for none of it.
    from serve_app.config import AppConfig
    from serve_app.gating.here import Here
    from serve_app.gating.store import GateStore

app = typer.Typer(no_args_is_help=True, help="Measure whether speculation is exact and pays here, and rule over it.")

Model = Annotated[str | None, typer.Argument(help="In place of the model in the configuration.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The deployment's own settings: a config file or a manifest.")
]
Context = Annotated[int | None, typer.Option("--ctx", min=8, help="As for `outrider run`: verifier.context.")]
PrecisionName = Annotated[
    Literal["int8", "int8-plain", "w8a16", "bf16", "f32"] | None,
    typer.Option("--precision", help="As for `outrider run`: verifier.precision."),
]
DraftK = Annotated[int | None, typer.Option(min=1, max=8, help="As for `outrider run`: verifier.draft_k.")]
BatchSlots = Annotated[
    int | None, typer.Option("--verifier-slots", min=1, help="`--slots` of `outrider run`: verifier.slots.")
]
Store = Annotated[str, typer.Option(help="file:PATH or redis://HOST; by default the configuration's.")]
Kind = Annotated[str, typer.Option(help="Only this kind of drafter.")]
Chip = Annotated[str, typer.Option(help="Only this kind of chip, as `outrider gate list` names it.")]
OfModel = Annotated[str, typer.Option("--model", help="Only this model: its fingerprint, file or name.")]
Pairing = Annotated[str, typer.Option(help="Only the pairing with this id.")]


@app.command("run")
def run_checks(
    model: Model = None,
    *,
    config: ConfigFile = None,
    context: Context = None,
    precision: PrecisionName = None,
    draft_k: DraftK = None,
    verifier_slots: BatchSlots = None,
    kinds: Annotated[str, typer.Option(help="Kinds of drafters, with commas.")] = "ngram",
    slots: Annotated[str, typer.Option(help="Numbers of active slots to measure, with commas.")] = "1,2,4,8,16,32",
    store: Store = "",
    prompts: Annotated[
        str, typer.Option(help="mixture, mt_bench, copy, quick, or a file with a prompt on each line.")
    ] = "mixture",
    tokens: Annotated[int | None, typer.Option(min=2, help="The most tokens of a reply; 64, with --quick 32.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs; not for production.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the speed-up into this .png.")] = None,
) -> None:
    """Measure on this machine, show what was found, and keep it; exit status 1 unless all kinds passed."""
    from serve_app.gating.app_file import open_gates, read_app_config, with_drafter
    from serve_app.gating.checks.command import CheckOptions, check_options, parse_kinds, parse_numbers, run_gate
    from serve_app.gating.operating import read_gates

    with _usage():
        options = CheckOptions(
            kinds=parse_kinds(kinds),
            numbers=parse_numbers(slots),
            prompts=prompts,
            tokens=tokens,
            is_quick=quick,
            plot=plot,
        )
        verifier = _verifier(context=context, precision=precision, draft_k=draft_k, slots=verifier_slots)
        settings = read_app_config(config, model=model, verifier=verifier)
        for kind in options.kinds:
            settings = with_drafter(settings, kind=kind)
        check_options(options, slots=settings.verifier.slots)
        opened = open_gates(settings, url=store)
    with closing(opened):
        # What cannot be read cannot be written, and this is better known before than after.
        read_gates(opened)
        try:
            has_passed = run_gate(settings, options=options, store=opened)
        except KeyboardInterrupt:
            print("stopped; nothing was written", file=sys.stderr)
            raise typer.Exit(130) from None
    raise typer.Exit(0 if has_passed else 1)


@app.command("list")
def list_gates(
    model: Model = None,
    *,
    config: ConfigFile = None,
    context: Context = None,
    precision: PrecisionName = None,
    draft_k: DraftK = None,
    verifier_slots: BatchSlots = None,
    service: Annotated[str, typer.Option(metavar="URL", help="Hold records against what runs there.")] = "",
    admin_keys_file: Annotated[
        str, typer.Option(help="A file whose first key opens the service's /admin; by default the configuration's.")
    ] = "",
    store: Store = "",
) -> None:
    """List what was measured and forced, and for each record whether it applies, or which parts of its key differ.

    It is held against the service, if one is given; else against the deployment that a model, --config or other
    settings describe; else against this machine alone.
    """
    from serve_app.gating.app_file import open_gates, read_app_config
    from serve_app.gating.here import this_machine
    from serve_app.gating.operating import listed, read_gates

    verifier = _verifier(context=context, precision=precision, draft_k=draft_k, slots=verifier_slots)
    with _usage():
        settings = read_app_config(config, model=model, verifier=verifier)
        opened = open_gates(settings, url=store)
    with closing(opened):
        gates = read_gates(opened)
    if service:
        here = _service(service, settings=settings, keys_file=admin_keys_file)
    elif model is not None or config is not None or verifier:
        here = _deployment(settings)
    else:
        here = (this_machine(),)
    print("\n".join(listed(gates, here=here)))


@app.command("show")
def show_gate(
    record: Annotated[str, typer.Argument(metavar="ID", help="The beginning of an id is enough.")],
    *,
    config: ConfigFile = None,
    store: Store = "",
) -> None:
    """Show one record with its key and all of its evidence."""
    from rich.console import Console

    from serve_app.gating.checks.tables import TABLE_WIDTH, tables
    from serve_app.gating.operating import as_yaml, found_record, read_gates
    from serve_app.gating.records import Forced

    with _opened(config, url=store) as opened:
        found = found_record(read_gates(opened), name=record)
    if not isinstance(found, Forced):
        Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(tables([found]))
    print(as_yaml(found), end="")


@app.command("force")
def force_gate(
    setting: Annotated[Literal["on", "off"], typer.Argument(help="on lets it run unmeasured, off stops it.")],
    *,
    kind: Kind = "",
    chip: Chip = "",
    of_model: OfModel = "",
    pairing: Pairing = "",
    why: Annotated[str, typer.Option(help="The reason, for whoever reads it later.")],
    by: Annotated[str, typer.Option(help="Who says so.")] = "",
    config: ConfigFile = None,
    store: Store = "",
) -> None:
    """Let drafters run here, or stop them, whatever was measured; without an option that narrows it, all of them."""
    from serve_app.gating.operating import forced_now, met, read_gates, target_of
    from serve_app.gating.records import Setting

    with _opened(config, url=store) as opened:
        target = target_of(pairing=pairing, kind=kind, chip=chip, model=of_model)
        forced = forced_now(target, setting=Setting(setting), by=by or getpass.getuser(), why=why)
        gates = read_gates(opened)
        opened.force(forced)
    known = ", ".join(record.id for record in met(gates, target=target))
    print(f"{target}: {forced}; of what was measured it meets {known or 'nothing yet'}")


@app.command("unforce")
def unforce_gate(
    *,
    kind: Kind = "",
    chip: Chip = "",
    of_model: OfModel = "",
    pairing: Pairing = "",
    config: ConfigFile = None,
    store: Store = "",
) -> None:
    """Take back what was forced with the same options; what was measured counts again."""
    from serve_app.gating.operating import read_gates, target_of

    with _opened(config, url=store) as opened:
        target = target_of(pairing=pairing, kind=kind, chip=chip, model=of_model)
        read_gates(opened)
        was_there = opened.unforce(target)
    print(f"{target}: no longer forced" if was_there else f"{target}: nothing was forced with just these options")
    raise typer.Exit(0 if was_there else 1)


@app.command("export")
def export_gates(*, config: ConfigFile = None, store: Store = "") -> None:
    """Print all gates as YAML, as a file: store or a ConfigMap takes them."""
    with _opened(config, url=store) as opened:
        print(opened.export(), end="")


def _verifier(
    *, context: int | None, precision: str | None, draft_k: int | None, slots: int | None
) -> dict[str, object]:
    """Those settings of the verifier that were given."""
    told = {"context": context, "precision": precision, "draft_k": draft_k, "slots": slots}
    return {name: value for name, value in told.items() if value is not None}


def _deployment(settings: "AppConfig") -> "tuple[Here, ...]":
    from serve_app.gating.app_file import with_drafter
    from serve_app.gating.here import this_deployment

    return (this_deployment(with_drafter(settings, kind="ngram")),)


def _service(url: str, *, settings: "AppConfig", keys_file: str) -> "tuple[Here, ...]":
    from serve_app.gating.there import that_service
    from serve_app.key_files import read_keys

    keys = read_keys(file=keys_file, env="", what="admin") if keys_file else settings.admin_keys()
    return that_service(url, keys=keys)


@contextmanager
def _opened(config: Path | None, *, url: str) -> "Iterator[GateStore]":
    from serve_app.gating.app_file import open_gates, read_app_config

    with _usage():
        store = open_gates(read_app_config(config), url=url)
    with closing(store):
        yield store


@contextmanager
def _usage() -> Iterator[None]:
    """What is wrong with options is told as typer tells it, with exit status 2."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
