"""Reads the configuration of an application from the file it is deployed with. Knows the shapes such files have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.messages.errors import ConfigError
from serve_app.config import AppConfig
from serve_app.drafter_config import AutoConfig
from serve_app.gating.opening import open_store
from serve_app.gating.store import GateStore

_BUILDER = "serve_app.app:build"


def read_app_config(
    path: Path | None, /, *, model: str | None = None, verifier: Mapping[str, object] | None = None
) -> AppConfig:
    """The configuration in a file, or the default one.

    Args:
        path: the settings themselves, a Serve config file, or a RayService manifest, alone or among others.
        model: takes the place of the one in the file.
        verifier: settings of the verifier that take the place of those in the file.

    Raises:
        ConfigError: the file cannot be read, or holds no configuration.
    """
    settings = {} if path is None else _settings(path)
    if model is not None:
        settings = {**settings, "model": model}
    in_file = settings.get("verifier") or {}
    if verifier and isinstance(in_file, dict):
        settings = {**settings, "verifier": {**in_file, **verifier}}
    try:
        return AppConfig.model_validate(settings)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"{path or 'the configuration'} is not right: {told}") from None


def with_drafter(config: AppConfig, /, *, kind: str) -> AppConfig:
    """The same, such that this kind may run: what is checked is the program that would run with it.

    Raises:
        ConfigError: no drafter of this kind can be checked.
    """
    for candidate in (config, config.model_copy(update={"drafter": AutoConfig()})):
        # Random and oracle drafters are for proofs; there is nothing to be found out about them.
        if kind not in ("random", "oracle") and kind in {choice.kind for choice in candidate.drafter_choices()}:
            return candidate
    raise ConfigError(f"no drafter {kind!r} can be checked; there is ngram")


def open_gates(config: AppConfig, /, *, url: str = "") -> GateStore:
    """The store of the configuration's gates.

    Args:
        url: takes the place of the one in the configuration.

    Raises:
        ConfigError: there is none, or it cannot be named so.
    """
    gates = config.gates.model_copy(update={"store": url}) if url else config.gates
    if not gates.store:
        raise ConfigError("the configuration asks no gates; say where they are kept with --store")
    return open_store(gates.store_settings())


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = _document(path)
        inner = _at(found, "spec", "serveConfigV2")
        if isinstance(inner, str):
            found = yaml.load(inner, Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no settings; see docs/reference/configuration.md")
    if "applications" not in found:
        return found
    applications = found["applications"]
    listed = applications if isinstance(applications, list) else []
    ours = [each for each in listed if _at(each, "import_path") == _BUILDER]
    if len(ours) != 1:
        raise ConfigError(f"{path} has {len(ours)} applications with import_path {_BUILDER}; there must be one")
    settings = ours[0].get("args") or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} has args that are no settings")
    return settings


def _document(path: Path) -> Any:
    """What the file holds; of several documents the one that deploys something."""
    documents = [each for each in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) if each]
    if len(documents) <= 1:
        return documents[0] if documents else None
    deploying = [each for each in documents if _at(each, "spec", "serveConfigV2") is not None]
    if len(deploying) != 1:
        raise ConfigError(f"{path} has {len(deploying)} documents with a serveConfigV2; there must be one")
    return deploying[0]


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
