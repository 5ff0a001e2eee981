"""The keys of what runs in this process: what a verifier says of its programs, and what the machine says of itself.

To be asked on the machine, and in the environment, that the programs run in.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from deployments.lm.drafting.build import StrategySettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.messages.errors import CheckpointError
from deployments.messages.gates import ProgramFacts
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.fingerprints import chip_key, compiler_flags, drafter_fingerprint, versions
from serve_app.gating.keys import DrafterKey, ExactnessKey, ProfitKey

HASHES = Path.home() / ".cache" / "outrider" / "hashes"


@dataclass(frozen=True, kw_only=True)
class _Device:
    platform: str
    device_kind: str


def exactness_key(facts: ProgramFacts, /, *, hashes: FileHashes | None = None) -> ExactnessKey:
    """The key of programs that run here. Reads the model's files whole unless their hash is remembered.

    Raises:
        CheckpointError: a file of the model cannot be read, or changed meanwhile.
    """
    device = _Device(platform=facts.platform, device_kind=facts.device_kind)
    found = versions(device)
    return ExactnessKey(
        chip=chip_key(device),
        devices=facts.devices,
        topology=facts.topology,
        model=_model(facts, hashes=hashes or FileHashes(HASHES)),
        architecture=facts.architecture,
        precision=facts.precision,
        kernels=facts.kernels,
        page_size=facts.page_size,
        context=facts.context,
        cache_pages=facts.cache_pages,
        ladder=facts.ladder,
        slots=facts.slots,
        draft_k=facts.draft_k,
        draft_rows=facts.draft_rows,
        jax=found["jax"],
        jaxlib=found["jaxlib"],
        libtpu=found.get("libtpu", ""),
        flags=compiler_flags(os.environ),
        programs=facts.programs,
    )


def profit_key(
    program: ExactnessKey,
    /,
    *,
    kind: str,
    settings: StrategySettings,
    placement: str = "remote",
    hashes: FileHashes | None = None,
) -> ProfitKey:
    """The key of a drafter on a program.

    Args:
        kind: as the drafter calls itself.

    Raises:
        OSError: a file of the drafter cannot be read.
    """
    return ProfitKey(
        program=program,
        drafter=drafter_key(kind=kind, settings=settings, placement=placement, hashes=hashes),
        k_max=min(settings.max_k, program.draft_k),
    )


def drafter_key(
    *, kind: str, settings: StrategySettings, placement: str = "remote", hashes: FileHashes | None = None
) -> DrafterKey:
    """The key of a drafter, whatever it drafts for; see `profit_key`."""
    files = {"path": (Path(settings.path),)} if isinstance(settings, OracleSettings) else {}
    fingerprint = drafter_fingerprint(settings, hashes=hashes or FileHashes(HASHES), files=files)
    return DrafterKey(kind=kind, fingerprint=fingerprint, placement=placement)


def _model(facts: ProgramFacts, *, hashes: FileHashes) -> str:
    try:
        return hashes.of_all([Path(path) for path in facts.model_files])
    except OSError as error:
        raise CheckpointError(f"the model cannot be told from others: {error}") from error
