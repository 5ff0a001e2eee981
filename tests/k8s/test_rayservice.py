"""The manifests against KubeRay's own schema, the Serve config against Ray's, and what gates need to reach replicas."""

import copy
import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from serve_app.config import AppConfig
from serve_app.gating.app_file import read_app_config
from serve_app.gating.encoding import decode_gates, encode_gates
from serve_app.gating.snapshot import Snapshot
from tests.serve_app.gating.making import exactness, profit

ROOT = Path(__file__).parents[2]
BASE = ROOT / "k8s" / "base"
GATE = ROOT / "k8s" / "gate"
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


def pods(manifest: Json) -> list[Json]:
    cluster = manifest["spec"]["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_replicas_follow_the_gates_in_a_config_map(manifest: Json) -> None:
    """The store is a file in a mounted folder, which a ConfigMap of one lasting name fills."""
    settings = read_app_config(BASE / "rayservice.yaml")
    assert settings.drafter.kind == "auto"
    path = Path(settings.gates.store.removeprefix("file:"))
    (made,) = yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
    assert made["options"] == {"disableNameSuffixHash": True}
    assert made["files"] == [path.name]
    for pod in pods(manifest):
        (volume,) = pod["volumes"]
        assert volume["configMap"] == {"name": made["name"]}
        for container in pod["containers"]:
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert mounts[str(path.parent)] == {"name": volume["name"], "mountPath": str(path.parent), "readOnly": True}
    assert decode_gates((BASE / path.name).read_bytes()) == Snapshot()


@pytest.fixture(scope="module")
def job() -> Json:
    loaded: Json = yaml.safe_load((GATE / "job.yaml").read_text())
    return loaded


def test_the_gate_is_a_job_on_the_chip_that_serves(
    manifest: Json, job: Json, validator: jsonschema.Draft202012Validator
) -> None:
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert set(job["spec"]) == {"backoffLimit", "template"}
    # The schema of any pod is in KubeRay's own.
    as_worker = copy.deepcopy(manifest)
    as_worker["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"] = job["spec"]["template"]
    assert errors_of(as_worker, validator=validator) == []
    (serving,) = (pod for pod in pods(manifest) if "nodeSelector" in pod)
    pod = job["spec"]["template"]["spec"]
    assert {name: pod[name] for name in ("nodeSelector", "tolerations")} == {
        name: serving[name] for name in ("nodeSelector", "tolerations")
    }
    (container,), (worker,) = pod["containers"], serving["containers"]
    assert (container["image"], container["resources"]) == (worker["image"], worker["resources"])
    assert all(variable in worker["env"] for variable in container["env"])
    assert "restartPolicy" in pod
    kustomization = yaml.safe_load((GATE / "kustomization.yaml").read_text())
    assert (kustomization["resources"], kustomization["images"][0]["name"]) == (["job.yaml"], container["image"])


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("has_found", [True, False])
def test_the_job_prints_what_was_found_whatever_it_is(job: Json, tmp_path: Path, status: int, has_found: bool) -> None:
    """Its script, with an `outrider` that does not measure but is itself where it prints; its log is read as told."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found, kept, programs = tmp_path / "found.yaml", tmp_path / "kept.yaml", tmp_path / "bin"
    found.write_text(encode_gates(Snapshot.of((exactness(), profit()), revision=2)))
    programs.mkdir()
    outrider = programs / "outrider"
    measuring = f"echo a table; {f'cp {found} {kept};' if has_found else ''} exit {status}"
    real = f'exec {shlex.quote(sys.executable)} -m serve_app.cli "$@"'
    outrider.write_text(f'#!/bin/sh\nif [ "$2" = run ]; then {measuring}; fi\n{real}\n')
    outrider.chmod(0o755)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (script,) = (
        text.replace("/tmp/gates.yaml", str(kept)).replace(mounted["gates"], str(BASE)) for text in container["args"]
    )
    done = subprocess.run(
        [*container["command"], script],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (done.returncode == 0) == (has_found or status == 0)
    if has_found:
        # As the how-to has it.
        read = ["sed", "-n", "/^# Gates of Outrider/,$p"]
        assert " ".join(shlex.quote(word) for word in read) in (ROOT / "docs/how-to/gate-a-chip.md").read_text()
        gates = subprocess.run(read, input=done.stdout, capture_output=True, check=True).stdout
        assert decode_gates(gates) == decode_gates(found.read_bytes())
