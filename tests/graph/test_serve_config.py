"""A Serve config file of the application: Ray's schema takes it, and a wrong setting is named before a start."""

from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from ray.serve import Application
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from deployments.messages.errors import ConfigError
from serve_app.app import build

CONFIG = Path(__file__).parents[1] / "data" / "serve" / "outrider.yaml"


@pytest.fixture
def settings() -> dict[str, Any]:
    schema = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    (application,) = schema.applications
    assert application.import_path == "serve_app.app:build"
    return dict(application.args)


def built(settings: dict[str, Any]) -> Application:
    """As Serve builds it from `args`."""
    builder: Any = build
    return call_user_app_builder_with_args_if_necessary(builder, settings)


def deployments(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        deployment.name: deployment
        for deployment in build_app(built(settings), name="outrider", route_prefix="/").deployments
    }


def test_the_file_builds_the_four_deployments(settings: dict[str, Any]) -> None:
    made = deployments(settings)
    assert made.keys() == {"ingress", "tokenizer", "drafter", "verifier"}
    assert made["drafter"].num_replicas == 2
    assert made["verifier"].ray_actor_options["num_cpus"] == 1


def test_without_a_drafter_there_are_three(settings: dict[str, Any]) -> None:
    assert "drafter" not in deployments(settings | {"drafter": {"kind": "off"}})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"modell": "x"}, r"modell\s+Extra inputs are not permitted"),
        ({"verifier": {"slots": 0}}, r"verifier\.slots\s+Input should be greater than 0"),
        ({"verifier": {"slot": 8}}, r"verifier\.slot\s+Extra inputs are not permitted"),
        ({"verifier": {"precision": "int4"}}, r"verifier\.precision\s+Input should be 'int8'"),
        ({"verifier": {"draft_k": 9}}, r"verifier\.draft_k\s+Input should be less than or equal to 8"),
        ({"drafter": {"kind": "magic"}}, r"drafter\s+.*'magic'.*'off', 'ngram'"),
        ({"drafter": {"kind": "ngram", "min_n": 4}}, r"min_n \(4\) must not exceed max_n \(3\)"),
        ({"drafter": {"kind": "off", "replicas": 2}}, r"drafter\.off\.replicas\s+Extra inputs"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        built(settings | wrong)


def test_a_key_file_that_is_not_there_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt"):
        built(settings | {"ingress": {"api_keys_file": "nowhere.txt"}})
