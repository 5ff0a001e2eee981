"""The manifest against KubeRay's own schema, and the Serve config in it against Ray's."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from serve_app.config import AppConfig

ROOT = Path(__file__).parents[2]
BASE = ROOT / "k8s" / "base"
CRD = ROOT / "tests" / "data" / "k8s" / "rayservice.v1.schema.json.gz"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
CHIPS_PER_HOST = {"1x1": 1, "2x2": 4, "2x4": 8}

type Json = dict[str, Any]


@pytest.fixture(scope="module")
def manifest() -> Json:
    loaded: Json = yaml.safe_load((BASE / "rayservice.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(strict(json.loads(gzip.decompress(CRD.read_bytes()))))


def strict(node: Any) -> Any:
    """An OpenAPI v3 schema of a CRD as JSON Schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {
        key: strict(value) for key, value in node.items() if not key.startswith("x-kubernetes") and key != "default"
    }
    if "properties" in node:
        schema["properties"] = {name: strict(value) for name, value in node["properties"].items()}
        if node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        schema = {"type": ["integer", "string"]}
    return schema


def errors_of(manifest: Json, *, validator: jsonschema.Draft202012Validator) -> list[str]:
    body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(body)]


def serve_config(manifest: Json) -> Json:
    loaded: Json = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    return loaded


def test_is_a_rayservice(manifest: Json, validator: jsonschema.Draft202012Validator) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    assert errors_of(manifest, validator=validator) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0, "numOfHost"], 1),
        (["spec", "serveConfigV3"], ""),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0, "replicas"], "one"),
        (["spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "containers", 0, "imagee"], "x"),
    ],
)
def test_schema_refuses_mistakes(
    manifest: Json, validator: jsonschema.Draft202012Validator, path: list[str | int], value: object
) -> None:
    """What the test above relies on: a misspelt field or a wrong type does not pass."""
    broken: Any = copy.deepcopy(manifest)
    at = broken
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value

    assert errors_of(broken, validator=validator)


def test_serve_config_is_one_ray_accepts(manifest: Json) -> None:
    config = ServeDeploySchema.model_validate(serve_config(manifest))

    assert [app.import_path for app in config.applications] == ["serve_app.app:build"]
    assert config.http_options.host == "0.0.0.0"
    unknown = set(serve_config(manifest)) - set(ServeDeploySchema.model_fields)
    assert not unknown, f"Ray passes over unknown top-level keys in silence: {unknown}"


def test_settings_are_ones_the_graph_accepts(manifest: Json) -> None:
    settings = AppConfig.model_validate(serve_config(manifest)["applications"][0]["args"])

    groups = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    chips = sum(CHIPS_PER_HOST[group["template"]["spec"]["nodeSelector"][TOPOLOGY]] for group in groups)
    assert settings.verifier.tpus * settings.verifier.replicas == chips


def test_chips_add_up(manifest: Json) -> None:
    """GKE's TPU webhook refuses a group whose hosts, topology and chips do not agree."""
    for group in manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        chips = CHIPS_PER_HOST[pod["nodeSelector"][TOPOLOGY]]
        for container in pod["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert int(container["resources"]["limits"]["google.com/tpu"]) == chips // group["numOfHosts"]
        assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


def test_images_are_the_one_that_kustomize_places(manifest: Json) -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    cluster = manifest["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {container["image"] for group in groups for container in group["template"]["spec"]["containers"]}

    assert images == {image["name"] for image in kustomization["images"]}
    assert all((BASE / resource).is_file() for resource in kustomization["resources"])
