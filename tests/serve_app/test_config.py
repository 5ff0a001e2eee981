"""What the sections of the configuration come to."""

from pathlib import Path
from typing import Any

import pydantic
import pytest

from deployments.lm.drafting.ngram import NgramSettings
from deployments.messages.errors import ConfigError
from deployments.verifier.calls import ChipSettings
from serve_app.config import AppConfig
from serve_app.gating.gatekeeper import Choosing
from serve_app.gating.policy import Order


def read(**sections: Any) -> AppConfig:
    return AppConfig.model_validate(sections)


@pytest.mark.parametrize(
    ("drafter", "choosing", "kinds"),
    [
        ({"kind": "auto"}, Choosing.AUTO, ["ngram"]),
        ({"kind": "ngram"}, Choosing.PICKED, ["ngram"]),
        ({"kind": "random", "vocabulary": 5}, Choosing.UNGATED, ["random"]),
        ({"kind": "off"}, Choosing.PICKED, []),
    ],
)
def test_the_drafter_decides_who_chooses(drafter: dict[str, Any], choosing: Choosing, kinds: list[str]) -> None:
    settings = read(drafter=drafter, gates={"store": "file:here.yaml"}).gate_settings()
    assert settings.choosing is choosing
    assert [choice.kind for choice in settings.drafters] == kinds
    assert str(drafter["kind"]) in settings.reason


def test_nothing_said_means_auto_and_a_file_of_ones_own() -> None:
    settings = read().gate_settings()
    assert settings.choosing is Choosing.AUTO
    assert settings.store.url == f"file:{Path.home()}/.cache/outrider/gates.yaml"
    assert (settings.order, settings.least_gain) == (Order.DOCUMENTS, 1.02)


def test_auto_means_the_drafter_that_is_meant_by_name() -> None:
    """So that a record for one is a record for the other."""
    assert read().drafter_choices() == read(drafter={"kind": "ngram"}).drafter_choices()


def test_without_a_store_a_kind_picked_by_hand_is_not_limited() -> None:
    assert read(drafter={"kind": "ngram"}, gates={"store": ""}).gate_settings().choosing is Choosing.UNGATED
    with pytest.raises(pydantic.ValidationError, match=r"drafter\.kind auto asks the gates; set gates\.store"):
        read(gates={"store": ""})


def test_the_password_of_a_store_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(gates={"store": "redis://gates:6379/1", "password_env": "GATES_PASSWORD", "auto_order": "fastest"})
    with pytest.raises(ConfigError, match="GATES_PASSWORD"):
        config.gate_settings()
    monkeypatch.setenv("GATES_PASSWORD", "sesame")
    settings = config.gate_settings()
    assert (settings.store.password, settings.order) == ("sesame", Order.FASTEST)
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    "gates",
    [
        {"store": "redis://user:sesame@gates:6379/x"},
        {"store": "postgres://user:sesame@gates"},
        {"store": "redis://user:sesame@gates", "ca_file": "ca.pem"},
        {"store": "redis://user:sesame@gates", "least_gain": 0.5},
    ],
)
def test_a_wrong_store_is_refused_without_its_password(gates: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="gates") as caught:
        read(gates=gates)
    assert "sesame" not in str(caught.value)


def test_admin_keys_are_keys_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("client\n")
    monkeypatch.setenv("OPERATORS", "alice, bob")
    ingress = {"api_keys_file": str(tmp_path / "keys"), "admin_keys_env": "OPERATORS"}
    settings = read(ingress=ingress).ingress_settings()
    assert (len(settings.api_key_digests), len(settings.admin_key_digests)) == (1, 2)
    assert not set(settings.api_key_digests) & set(settings.admin_key_digests)
    monkeypatch.setenv("OPERATORS", " , ")
    with pytest.raises(ConfigError, match="admin keys were asked for but none was found"):
        read(ingress=ingress).ingress_settings()


def test_a_drafter_on_the_verifiers_device() -> None:
    config = read(drafter={"kind": "ngram", "placement": "chip", "min_n": 1}, verifier={"rounds": 6, "draft_k": 5})
    drafter = NgramSettings(max_n=3, min_n=1, max_k=5)
    assert config.verifier_settings().model.chip == ChipSettings(drafter=drafter, rounds=6)
    assert [(choice.settings, choice.placement) for choice in config.drafter_choices()] == [(drafter, "chip")]


@pytest.mark.parametrize("drafter", [{"kind": "ngram"}, {"kind": "auto"}, {"kind": "off"}])
def test_drafters_are_elsewhere_by_default(drafter: dict[str, Any]) -> None:
    config = read(drafter=drafter)
    assert config.verifier_settings().model.chip is None
    assert {choice.placement for choice in config.drafter_choices()} <= {"remote"}


def test_only_a_kind_that_can_goes_to_the_device() -> None:
    with pytest.raises(pydantic.ValidationError, match="placement"):
        read(drafter={"kind": "random", "vocabulary": 5, "placement": "chip"})


@pytest.mark.parametrize(("tpus", "devices"), [(4, 1), (2, 8), (4, 3)])
def test_chips_that_would_idle_or_are_not_there_are_named(tpus: int, devices: int) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel {devices} does not fit {tpus} TPU chips; set it to {tpus}"):
        AppConfig.model_validate({"verifier": {"tpus": tpus, "tensor_parallel": devices}})


@pytest.mark.parametrize(("tpus", "devices"), [(0, 8), (1, 1), (1, 2), (4, 4), (4, 8)])
def test_chips_that_share_a_model_are_accepted(tpus: int, devices: int) -> None:
    AppConfig.model_validate({"verifier": {"tpus": tpus, "tensor_parallel": devices}})
