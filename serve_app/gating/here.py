"""What can be known of this machine and a configuration without loading a model, to hold records against.

The fingerprint of the programs is known to a running service alone; `there` asks one.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import msgspec

from deployments.lm.checkpoint.opening import open_checkpoint
from deployments.lm.kernels.native import choose_kernels, described
from deployments.lm.mesh import mesh_here, topology_of
from deployments.lm.models.load import read_config
from deployments.messages.errors import CheckpointError, ConfigError
from deployments.verifier.sizing import ModelSettings
from deployments.verifier.spreading import wanted_kernels
from serve_app.config import AppConfig
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.fingerprints import chip_key, compiler_flags, versions
from serve_app.gating.keys import ExactnessKey, Key, ProfitKey, differences
from serve_app.gating.running import HASHES, drafter_key
from serve_app.model_fetch import resolve_model

_OF_PAIRINGS = tuple(name for name in ProfitKey.__struct_fields__ if name != "program")


@dataclass(frozen=True, kw_only=True)
class Here:
    """What records are held against.

    Attributes:
        where: for sentences.
        parts: of an exactness key, by name; those that are not known are left out.
        pairings: the other parts of a profit key, by kind of drafter; `None` compares no drafters.
    """

    where: str = "here"
    parts: dict[str, Any]
    pairings: dict[str, dict[str, Any]] | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts of keys that are not compared."""
        names = tuple(name for name in ExactnessKey.__struct_fields__ if name not in self.parts)
        return (*names, *_OF_PAIRINGS) if self.pairings is None else names

    def differences(self, key: Key, /) -> tuple[str, ...]:
        """What keeps a record from applying, the record's part first; none as far as can be seen."""
        return differences(key, other=self._in_place_of(key))

    def _in_place_of(self, key: Key) -> Key:
        if isinstance(key, ExactnessKey):
            return msgspec.structs.replace(key, **self.parts)
        program = msgspec.structs.replace(key.program, **self.parts)
        return msgspec.structs.replace(key, program=program, **self._pairing(key))

    def _pairing(self, key: ProfitKey) -> dict[str, Any]:
        if self.pairings is None:
            return {}
        found = self.pairings.get(key.drafter.kind)
        if found is None:
            # Its other parts have nothing to be compared with.
            kinds = " or ".join(self.pairings) or "none"
            return {"drafter": msgspec.structs.replace(key.drafter, kind=kinds)}
        return found


def this_machine() -> Here:
    """The chip, the versions and the flags. A chip that is in use by another process is not looked at."""
    try:
        devices = jax.devices()
    except RuntimeError:
        return Here(parts={"flags": compiler_flags(os.environ)})
    chip = {"chip": chip_key(devices[0]), "devices": 1, "topology": "", "libtpu": ""}
    return Here(parts={**chip, **versions(devices[0]), "flags": compiler_flags(os.environ)})


def this_deployment(config: AppConfig, /, *, hashes: FileHashes | None = None) -> Here:
    """The same, and all that follows from a configuration and the model's files, which are read whole once.

    Native kernels are compiled if they never were, since which they are is a part of the key.

    Raises:
        CheckpointError, ConfigError: there is no such model.
    """
    hashes = hashes or FileHashes(HASHES)
    settings = config.verifier_settings().model
    checkpoint = open_checkpoint(str(resolve_model(config.model)))
    try:
        model = hashes.of_all(checkpoint.files)
    except OSError as error:
        raise CheckpointError(f"the model cannot be told from others: {error}") from error
    page_size = min(settings.page_size, settings.context)
    most = settings.slots * settings.draft_k
    parts = {
        **this_machine().parts,
        **_kernels(settings),
        "model": model,
        "architecture": read_config(checkpoint).architecture,
        "precision": settings.precision.value,
        "page_size": page_size,
        "context": settings.context,
        "cache_pages": settings.slots * (settings.context // page_size)
        if settings.cache_pages is None
        else settings.cache_pages,
        "ladder": settings.ladder,
        "slots": settings.slots,
        "draft_k": settings.draft_k,
        "draft_rows": most if settings.draft_rows is None else min(most, settings.draft_rows),
    }
    if settings.tensor_parallel > 1:
        parts.pop("topology", None)
        parts |= _shared(settings.tensor_parallel)
    return Here(parts=parts, pairings=_pairings(config, draft_k=settings.draft_k, hashes=hashes))


def _pairings(config: AppConfig, *, draft_k: int, hashes: FileHashes) -> dict[str, dict[str, Any]]:
    return {
        choice.kind: {
            "drafter": drafter_key(
                kind=choice.kind, settings=choice.settings, placement=choice.placement, hashes=hashes
            ),
            "k_max": min(choice.settings.max_k, draft_k),
        }
        for choice in config.drafter_choices()
    }


def _shared(devices: int) -> dict[str, Any]:
    """Of several devices how they are wired too, where there are as many here and nobody else has them."""
    try:
        return {"devices": devices, "topology": topology_of(mesh_here(devices))}
    except (ConfigError, RuntimeError):
        return {"devices": devices}


def _kernels(settings: ModelSettings) -> dict[str, str]:
    """Nothing where they cannot be had, or nobody may look at the chip."""
    cache = Path(settings.compile_cache or Path.home() / ".cache" / "outrider") / "kernels"
    try:
        wanted = wanted_kernels(settings.kernels, devices=settings.tensor_parallel)
        return {"kernels": described(choose_kernels(wanted, cache=cache)[0])}
    except (ConfigError, RuntimeError):
        return {}
