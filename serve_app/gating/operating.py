"""What operators ask of a store of gates: what is there, whether it applies here, and their own word. No terminal."""

import string
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import yaml

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.messages.errors import ConfigError
from serve_app.gating.checks.tables import verdict_line
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.here import Here
from serve_app.gating.records import ExactnessRecord, Forced, ProfitRecord, Record, Setting, Target
from serve_app.gating.running import HASHES
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStore, GateStoreError, StoreState
from serve_app.model_fetch import resolve_model

_DIGEST = 64
_WIDTH = 110
_IN_TROUBLE = (StoreState.UNREADABLE, StoreState.UNREACHABLE, StoreState.MISSING)


def read_gates(store: GateStore, /) -> Snapshot:
    """What the store holds now.

    Raises:
        GateStoreError: it cannot be read.
    """
    gates = store.load()
    status = store.status()
    if status.state in _IN_TROUBLE:
        raise GateStoreError(f"the gates are {status.state.value}: {status.detail}")
    return gates


def listed(gates: Snapshot, /, *, here: Sequence[Here]) -> Iterator[str]:
    """A line for each record and for each word of an operator; below a record, whether it applies to each of `here`."""
    for record in gates.records:
        yield f"{record.id}  {_forced_line(record) if isinstance(record, Forced) else _measured_line(record)}"
        if not isinstance(record, Forced):
            yield from (f"{'':18}{_applies(record, here=each)}" for each in here)
    if not gates.records:
        yield "no gates: 'outrider gate run' makes the first ones"
    yield from _not_compared(here) if gates.exactness or gates.profit else ()


def found_record(gates: Snapshot, /, *, name: str) -> Record | Forced:
    """The one whose id begins so.

    Raises:
        ConfigError: there is none, or several.
    """
    found = [record for record in gates.records if record.id.startswith(name)]
    if len(found) != 1:
        raise ConfigError(f"{len(found)} gates have an id that begins with {name!r}; 'outrider gate list' shows them")
    return found[0]


def as_yaml(record: Record | Forced, /) -> str:
    """All of it, in the words of the file format."""
    return yaml.dump(
        {"id": record.id, **msgspec.to_builtins(record)},
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
        default_flow_style=None,
        width=_WIDTH,
        allow_unicode=True,
    )


def target_of(*, pairing: str = "", kind: str = "", chip: str = "", model: str = "") -> Target:
    """What an operator means.

    Args:
        model: a fingerprint, or a model on this machine, whose fingerprint is taken.

    Raises:
        ConfigError, CheckpointError: there is no such model.
    """
    return Target(pairing=pairing, kind=kind, chip=chip, model=_fingerprint(model) if model else "")


def forced_now(target: Target, /, *, setting: Setting, by: str, why: str) -> Forced:
    """An operator's word of this moment. Raises `ConfigError` where nobody says it."""
    if not by.strip():
        raise ConfigError("say who forces this, with --by")
    return Forced(target=target, setting=setting, by=by, at=datetime.now(UTC).replace(microsecond=0), why=why)


def met(gates: Snapshot, /, *, target: Target) -> tuple[ProfitRecord, ...]:
    """The records whose pairings are meant."""
    return tuple(record for record in gates.profit if target.holds(record.key))


def _measured_line(record: Record) -> str:
    when = record.measured.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    return f"{when}  {verdict_line(record)}; {_subject(record)}"


def _subject(record: Record) -> str:
    program = record.key if isinstance(record, ExactnessRecord) else record.key.program
    return f"model {program.model[:12]}, {program.precision}, on {program.chip.kind}"


def _forced_line(forced: Forced) -> str:
    return f"{forced.at.astimezone(UTC):%Y-%m-%d %H:%M}  {forced.target}: {forced}"


def _applies(record: Record, *, here: Here) -> str:
    missing = here.differences(record.key)
    if missing:
        return f"does not apply {here.where}: {', '.join(missing)}"
    return f"applies {here.where}{' as far as can be seen' if here.unknown else ''}"


def _not_compared(here: Sequence[Here]) -> Iterator[str]:
    unknown = dict.fromkeys(name for each in here for name in each.unknown)
    if not unknown:
        return
    yield f"not compared: {', '.join(unknown)}"
    if any(each.pairings is None for each in here):
        yield "  what follows from a configuration is, with a model, --config, or the options of 'outrider run'"
    yield "  every part is, with --service URL: a running service says its own"


def _fingerprint(model: str) -> str:
    if len(model) == _DIGEST and set(model) <= set(string.hexdigits.lower()):
        return model
    return FileHashes(HASHES).of_all(open_checkpoint(str(resolve_model(model))).files)
