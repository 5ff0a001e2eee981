"""The figures that have limits, of layers as wide as an 8B model's, compiled for chips."""

import json
from pathlib import Path

import pytest
import yaml

from serve_app.compiling.command import CompileOptions, compile_model
from serve_app.compiling.report import Report

SHAPES = Path(__file__).parents[3] / "serve_app" / "compiling" / "shapes"
LAYERS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(
    scope="module",
    params=["v6e-1", "v6e-4", *(pytest.param(chip, marks=pytest.mark.exhaustive) for chip in ("v5e-1", "v5p-1"))],
)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    numbers = yaml.safe_load((SHAPES / "llama-3.1-8b.yaml").read_text()) | {"num_hidden_layers": LAYERS}
    shape = tmp_path_factory.mktemp("shapes") / "llama.json"
    shape.write_text(json.dumps(numbers))
    return compile_model(
        CompileOptions(
            chip=request.param, model=str(shape), precision="int8", slots=8, context=2048, draft_k=0, ladder=(8,)
        )
    )


def test_every_program_is_compiled_and_fits(report: Report) -> None:
    assert report.is_sound, [one.refusal for one in report.programs if one.refusal]


def test_every_limit_holds(report: Report) -> None:
    broken = [(one.name, one.value, one.blame) for one in report.checks if not one.holds]
    assert not broken
    assert len(report.checks) == (3 if report.devices == 1 else 6)


def test_weights_are_read_once(report: Report) -> None:
    narrow = report.estimates[0]
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    assert narrow.weights * report.devices == pytest.approx(LAYERS * layer + 128256 * 4096, rel=0.01)
    # Two terms of activations for each of 8 rows, and each weight a multiplication and an addition.
    assert narrow.int8 * report.devices == pytest.approx(2 * 2 * 8 * (LAYERS * layer + 128256 * 4096), rel=0.01)
