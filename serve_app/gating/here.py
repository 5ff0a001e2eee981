"""What can be known of this machine and a configuration without loading a model, to hold records against.

The other parts of a key, the fingerprint of the programs above all, are known to a running service alone.
"""

import os
from dataclasses import dataclass
from typing import Any

import jax
import msgspec

from deployments.lm.checkpoint.opening import open_checkpoint
from serve_app.config import AppConfig
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.fingerprints import chip_key, compiler_flags, versions
from serve_app.gating.keys import ExactnessKey, Key, ProfitKey, differences
from serve_app.gating.running import HASHES, profit_key
from serve_app.model_fetch import resolve_model


@dataclass(frozen=True, kw_only=True)
class Here:
    """This machine, and perhaps a configuration.

    Attributes:
        parts: of an exactness key, by name; those that are not known are left out.
        config: `None` compares no drafters.
    """

    parts: dict[str, Any]
    config: AppConfig | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts of a key that are not compared."""
        return tuple(name for name in ExactnessKey.__struct_fields__ if name not in self.parts)

    def differences(self, key: Key, /) -> tuple[str, ...]:
        """What keeps a record from applying here, the record's part first; none as far as can be seen."""
        return differences(key, other=self._in_place_of(key))

    def _in_place_of(self, key: Key) -> Key:
        if isinstance(key, ExactnessKey):
            return msgspec.structs.replace(key, **self.parts)
        program = msgspec.structs.replace(key.program, **self.parts)
        return msgspec.structs.replace(self._pairing(key, program=program), program=program)

    def _pairing(self, key: ProfitKey, *, program: ExactnessKey) -> ProfitKey:
        choices = () if self.config is None else self.config.drafter_choices()
        for choice in choices:
            if choice.kind == key.drafter.kind:
                return profit_key(program, kind=choice.kind, settings=choice.settings, placement=choice.placement)
        return key


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

    Raises:
        CheckpointError, ConfigError: there is no such model.
        OSError: a file of the model cannot be read.
    """
    settings = config.verifier_settings().model
    checkpoint = open_checkpoint(str(resolve_model(config.model)))
    page_size = min(settings.page_size, settings.context)
    most = settings.slots * settings.draft_k
    parts = {
        "model": (hashes or FileHashes(HASHES)).of_all(checkpoint.files),
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
    return Here(parts={**this_machine().parts, **parts}, config=config)
