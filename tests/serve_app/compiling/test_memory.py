"""What has to fit, from a blueprint alone and from programs."""

import json
from pathlib import Path

import pytest
import yaml

from deployments.lm.quant.linear import Precision
from serve_app.compiling.blueprints import Subject, Wanted, open_model, subject_of
from serve_app.compiling.chips import slice_named
from serve_app.compiling.hlo import parse_module
from serve_app.compiling.memory import Resident, compiled, fit_of, planned, would_hold
from tests.serve_app.compiling import texts

SHAPES = Path(__file__).parents[3] / "serve_app" / "compiling" / "shapes"
GIB = 2**30
LAYERS = 4


def subject(model: str, folder: Path, *, chip: str) -> Subject:
    """As wide as the model, but of few layers."""
    numbers = yaml.safe_load((SHAPES / f"{model}.yaml").read_text())
    shape = folder / f"{model}.json"
    shape.write_text(json.dumps(numbers | {"num_hidden_layers": LAYERS}))
    wanted = Wanted(precision=Precision.INT8, slots=8, context=2048, page_size=64, draft_k=7, ladder=(8, 128))
    return subject_of(open_model(shape), wanted=wanted, on=slice_named(chip))


def test_weights_are_a_byte_each_and_the_embedding_two(tmp_path: Path) -> None:
    plan = planned(subject("llama-3.1-8b", tmp_path, chip="v6e-1").blueprint)
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    assert plan.weights == pytest.approx(LAYERS * layer + (1 + 2) * 128256 * 4096, rel=0.002)
    # Keys and values, 8 heads of 128 in bf16, and a scratch page.
    assert plan.pages == (8 * 2048 + 64) * LAYERS * 2 * 8 * 128 * 2
    assert plan.states == 0


def test_four_chips_have_a_quarter_each(tmp_path: Path) -> None:
    one, four = (planned(subject("llama-3.1-8b", tmp_path, chip=chip).blueprint) for chip in ("v6e-1", "v6e-4"))
    assert four.weights == pytest.approx(one.weights / 4, rel=0.01)
    assert four.pages * 4 == one.pages


def test_recurrent_states_are_told_from_pages(tmp_path: Path) -> None:
    plan = planned(subject("qwen3.8-27b", tmp_path, chip="v6e-1").blueprint)
    # 8 slots, 8 states that are kept, scratch and the empty one: in 3 of 4 layers 48 matrices of 128 x 128 in f32.
    assert plan.states == pytest.approx(18 * 3 * 48 * 128 * 128 * 4, rel=0.1)
    assert plan.pages == (8 * 2048 + 64) * 2 * 4 * 256 * 2


def test_room_is_counted_in_slots_and_in_tokens(tmp_path: Path) -> None:
    own = subject("llama-3.1-8b", tmp_path, chip="v5p-1")
    plan = planned(own.blueprint)
    fit = fit_of(plan, programs=(), sizes=own.blueprint.sizes, on=own.on, longest=10**9)
    assert fit.fits
    token = LAYERS * 2 * 8 * 128 * 2
    tokens = 8 * fit.context + 64
    assert fit.slots == 128, "there is room for thousands, but no window has more rows"
    assert plan.weights + tokens * token <= fit.usable < plan.weights + (tokens + 8 * 2048) * token


def test_no_context_is_longer_than_the_models(tmp_path: Path) -> None:
    own = subject("llama-3.1-8b", tmp_path, chip="v5p-1")
    fit = fit_of(planned(own.blueprint), programs=(), sizes=own.blueprint.sizes, on=own.on, longest=own.longest)
    assert fit.context == own.longest == 131072


def test_programs_say_what_tiles_pad() -> None:
    plan = Resident(weights=1000, pages=500_000, states=0)
    cache = (1024 + 64) * 128 * 4
    # No weights among the arguments, so nothing is known better.
    assert compiled([parse_module(texts.SCATTER)], plan=plan) == plan
    named = '%rows = f32[8,128]{1,0:T(8,128)} parameter(2), metadata={op_name="weights[0]"}'
    text = texts.SCATTER.replace("%rows = f32[8,128]{1,0:T(8,128)} parameter(2)", named)
    assert compiled([parse_module(text)], plan=plan) == Resident(weights=4096, pages=cache, states=0)


def test_slices_that_would_hold_it() -> None:
    whole = Resident(weights=60 * GIB, pages=10 * GIB, states=0)
    held = would_hold(whole, on=slice_named("v6e-1"), splits=True)
    assert held == ("v5e-8", "v5p-1", "v5p-4", "v6e-4", "v6e-8", "tpu7x-4")
    assert would_hold(whole, on=slice_named("v6e-1"), splits=False) == ("v5p-1",)
