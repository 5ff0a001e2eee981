"""Configuration files in all the shapes that deployments have."""

from pathlib import Path

import pytest
import yaml

from deployments.messages.errors import ConfigError
from serve_app.config import AppConfig
from serve_app.gating.app_file import open_gates, read_app_config, with_drafter

SETTINGS = {"model": "tiny", "verifier": {"slots": 3}}
SERVE = {"applications": [{"import_path": "other:app"}, {"import_path": "serve_app.app:build", "args": SETTINGS}]}


@pytest.mark.parametrize(
    "shape", [SETTINGS, SERVE, {"kind": "RayService", "spec": {"serveConfigV2": yaml.safe_dump(SERVE)}}]
)
def test_settings_are_found_in_every_shape(shape: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text(yaml.safe_dump(shape))
    config = read_app_config(path)
    assert (config.model, config.verifier.slots) == ("tiny", 3)
    assert read_app_config(path, model="other").model == "other"


def test_the_manifest_that_is_deployed_can_be_checked(tmp_path: Path) -> None:
    manifest = Path(__file__).parents[3] / "k8s" / "base" / "rayservice.yaml"
    assert read_app_config(manifest).verifier.tpus == 1
    # As `kubectl kustomize` prints it, among others.
    several = tmp_path / "app.yaml"
    several.write_text(f"kind: ConfigMap\ndata: {{}}\n---\n{manifest.read_text()}\n---\n")
    assert read_app_config(several) == read_app_config(manifest)


def test_what_is_given_beside_the_file_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text(yaml.safe_dump({"verifier": {"slots": 3, "context": 256}}))
    verifier = read_app_config(path, verifier={"slots": 5, "draft_k": 2}).verifier
    assert (verifier.slots, verifier.context, verifier.draft_k) == (5, 256, 2)
    assert read_app_config(None, verifier={"slots": 5}).verifier.slots == 5


def test_without_a_file_it_is_what_outrider_run_serves() -> None:
    assert read_app_config(None) == AppConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("verifier: {slots: none}", "verifier.slots"),
        ("verifer: {}", "verifer"),
        ("- 1", "holds no settings"),
        ("{", "cannot be read"),
        ("applications: []", "0 applications"),
        ("applications: [{import_path: 'serve_app.app:build', args: 3}]", "args"),
        ("applications: 3", "applications"),
        ("verifier: 3", "verifier"),
        ("kind: ConfigMap\n---\nkind: Job", "0 documents"),
        ("gates: {store: 'redis://:secret@'}", "gates"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_app_config(path, verifier={"draft_k": 2})
    assert told in str(refused.value)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_app_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("kind", ["auto", "off", "ngram"])
def test_what_is_checked_is_the_program_that_would_run_with_the_drafter(kind: str) -> None:
    config = AppConfig.model_validate({"drafter": {"kind": kind}, "verifier": {"draft_k": 5}})
    checked = with_drafter(config, kind="ngram")
    assert checked.verifier_settings().model.draft_k == 5
    assert [choice.kind for choice in checked.drafter_choices()] == ["ngram"]


def test_the_settings_of_a_drafter_that_was_chosen_stay() -> None:
    config = AppConfig.model_validate({"drafter": {"kind": "ngram", "max_n": 5}})
    assert with_drafter(config, kind="ngram") == config


@pytest.mark.parametrize("kind", ["mtp", "random", ""])
def test_kinds_that_cannot_be_checked_are_refused(kind: str) -> None:
    config = AppConfig.model_validate({"drafter": {"kind": "random", "vocabulary": 9}})
    with pytest.raises(ConfigError, match="can be checked"):
        with_drafter(config, kind=kind)


def test_a_store_is_that_of_the_configuration_or_the_one_given(tmp_path: Path) -> None:
    config = AppConfig.model_validate({"drafter": {"kind": "off"}, "gates": {"store": ""}})
    with pytest.raises(ConfigError, match="--store"):
        open_gates(config)
    store = open_gates(config, url=f"file:{tmp_path / 'gates.yaml'}")
    store.close()
    with pytest.raises(ConfigError, match="file:"):
        open_gates(config, url="ftp://somewhere")
