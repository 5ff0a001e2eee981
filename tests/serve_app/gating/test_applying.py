"""What makes a record not apply: the verifier's own decision and `outrider gate list` name the same part."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.verifier.loading import LoadedModel
from serve_app.gating import fingerprints
from tests.serve_app.gating.deployed import VERIFIER, config, gate, passed, settings, watching

ROOT = Path(__file__).parents[3]


def listed(path: Path, *, model: Path, store: Path, **verifier: Any) -> str:
    path.write_text(yaml.safe_dump(settings(model, store=store, **verifier)))
    return gate("list", "--config", str(path))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("byte", "model "),
        ("draft_k", "draft_k 3 != 2"),
        ("ladder", "ladder [8 16] != [8 16 32]"),
        ("jax", "!= 99.1"),
    ],
)
def test_whatever_differs_is_named_and_nothing_runs(
    change: str, part: str, model: LoadedModel, golden_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store, app = tmp_path / "model.gguf", tmp_path / "gates.yaml", tmp_path / "app.yaml"
    shutil.copy(golden_llama / "llama.f16.gguf", path)
    deployed, running = config(path, store=store), replace(model, files=(path,))
    passed(running, deployed=deployed, ratios={1: 1.6})
    with watching(running, deployed=deployed) as watch:
        assert (watch.rule.kind, watch.rule.state) == ("ngram", "settled")
    before = listed(app, model=path, store=store)
    assert before.count("applies here as far as can be seen") == 2
    assert "not compared: programs\n" in before

    changed: dict[str, Any] = {}
    match change:
        case "byte":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        case "draft_k":
            changed = {"draft_k": 2}
        case "ladder":
            changed = {"ladder": (8, 16, 32)}
        case _:
            monkeypatch.setattr(fingerprints, "version", lambda _: "99.1")
    other = replace(running, settings=replace(running.settings, **changed))
    with watching(other, deployed=config(path, store=store, **changed)) as watch:
        rule = watch.rule
    assert (rule.kind, rule.state, rule.reason) == (None, "unknown", "not_gated")
    assert "no record of exactness applies; the nearest does not: " in rule.sentence
    assert part in rule.sentence
    after = listed(app, model=path, store=store, **changed)
    told = [line for line in after.splitlines() if "does not apply here: " in line]
    assert len(told) == 2
    assert all(part in line for line in told)
    assert "applies here as far" not in after


def test_a_pairing_of_another_k_max_does_not_apply(model: LoadedModel, golden_llama: Path, tmp_path: Path) -> None:
    path, store, app = golden_llama / "llama.f16.gguf", tmp_path / "gates.yaml", tmp_path / "app.yaml"
    passed(model, deployed=config(path, store=store), ratios={1: 1.6})
    pair = next(
        line for line in listed(app, model=path, store=store, draft_k=2).splitlines() if "drafter.fingerprint" in line
    )
    assert "k_max 3 != 2" in pair


def test_the_same_settings_as_options_find_the_same_record(
    model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    """A service started by hand with options, and one deployed from a file, have the same programs."""
    path, store, app = golden_llama / "llama.f16.gguf", tmp_path / "gates.yaml", tmp_path / "app.yaml"
    passed(model, deployed=config(path, store=store), ratios={1: 1.6})
    given = {"slots": 4, "context": 128, "precision": "f32", "draft_k": 3}
    app.write_text(
        yaml.safe_dump({"model": str(path), "verifier": {k: v for k, v in VERIFIER.items() if k not in given}})
    )
    words = ["list", "--config", str(app), "--store", f"file:{store}"]
    without = gate(*words)
    assert without.count("does not apply here: ") == 2
    assert "slots 4 != 8" in without
    options = ["--verifier-slots", "4", "--ctx", "128", "--precision", "f32", "--draft-k", "3"]
    assert gate(*words, *options).count("applies here as far as can be seen") == 2


@pytest.mark.slow
def test_a_moved_source_line_makes_no_other_program(golden_llama: Path, tmp_path: Path) -> None:
    """All that the programs are made of, read from a copy with lines put before every file's first."""
    shutil.copytree(ROOT / "deployments", tmp_path / "deployments", ignore=shutil.ignore_patterns("__pycache__"))
    for source in (tmp_path / "deployments").rglob("*.py"):
        if source.read_text():
            source.write_text("# moved\n\n# and further\n" + source.read_text())
    program = (
        "import json, sys\n"
        "from deployments.lm import decoder\n"
        "from deployments.lm.kernels.choice import Kernels\n"
        "from deployments.verifier.loading import load_model\n"
        "from deployments.verifier.sizing import ModelSettings\n"
        "settings = ModelSettings(model_path=sys.argv[1], kernels=Kernels.XLA, slots=2, context=32, page_size=16,\n"
        "                         draft_k=1, ladder=(8,))\n"
        "facts = load_model(settings, progress=lambda _: None).facts()\n"
        "print(json.dumps([decoder.__file__, facts.programs]))\n"
    )
    (here, one), (there, other) = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program, str(golden_llama / "llama.f16.gguf")],
                cwd=folder,
                env={"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for folder in (ROOT, tmp_path)
    )
    assert Path(here).is_relative_to(ROOT)
    assert Path(there).is_relative_to(tmp_path)
    assert one == other
